package shm

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLate: only a stopped process is called stopped. A running process without progress is called slow.
func TestLate(t *testing.T) {
	for _, c := range []struct {
		pid   int
		state byte
		says  string
	}{
		{7, 'T', "process 7 is stopped by a signal"},
		{7, 't', "process 7 is stopped by a debugger"},
		{7, 'R', "process 7 is slow: starved of CPU time"},
		{7, 'D', "process 7 is slow"},
		{7, 0, "process 7 may be stopped, or starved of CPU time"},
		{0, 0, "another process may be stopped"},
		{os.Getpid(), 'S', "this process is slow"},
	} {
		text := lateCopy(uint64(c.pid)<<8 | uint64(c.state))
		require.Contains(t, text, c.says)
		require.Contains(t, text, "may still touch the memory")
		require.Equal(t, c.state == 'T' || c.state == 't', strings.Contains(text, "is stopped"))
	}
}

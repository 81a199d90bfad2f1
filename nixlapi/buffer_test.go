package nixlapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// memfds counts this process's open memory files.
func memfds(t *testing.T) (n int) {
	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, l := range links {
		if to, _ := os.Readlink(l); strings.HasPrefix(to, "/memfd:gorail-bench") {
			n++
		}
	}
	return n
}

// TestAllocShared: the memory is a file that others can map, and Free closes it.
func TestAllocShared(t *testing.T) {
	b, err := AllocShared(8192)
	require.NoError(t, err)
	require.Len(t, b.B, 8192)
	require.Equal(t, 1, memfds(t))
	b.B[8191] = 7
	got := make([]byte, 1)
	_, err = b.file.ReadAt(got, 8191)
	require.NoError(t, err)
	require.EqualValues(t, 7, got[0])
	require.NoError(t, b.Free())
	require.NoError(t, b.Free())
	require.Zero(t, memfds(t))
}

package node

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClock: a process steps its clock of the day, and the time since its start goes on. It is a process of its own: a changed vDSO stays.
func TestClock(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64 only")
	}
	if os.Getenv("GORAIL_TEST_CLOCK") == "" {
		c := exec.Command(os.Args[0], "-test.run", "^TestClock$")
		c.Env = append(os.Environ(), "GORAIL_TEST_CLOCK=1")
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	require.Error(t, stepClock(time.Hour), "before ownClock")
	require.NoError(t, ownClock())
	began, real := time.Now(), time.Now().Unix()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		require.NoError(t, stepClock(by))
		require.InDelta(t, real+int64(by/time.Second), time.Now().Unix(), 5)
		require.Less(t, time.Since(began), 5*time.Second, "the monotonic clock")
	}
}

package failover

import (
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo is a child process that returns what it is sent.
type echo struct {
	t    testing.TB
	to   io.Writer
	from io.Reader
}

// newEcho starts the process. It ends with the test.
func newEcho(t testing.TB) *echo {
	t.Helper()
	c := exec.Command("cat")
	to, err := c.StdinPipe()
	require.NoError(t, err)
	from, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = to.Close()
		_ = c.Wait()
	})
	return &echo{t, to, from}
}

// time returns the median time of a byte to the process and back.
func (e *echo) time() time.Duration {
	e.t.Helper()
	var all []time.Duration
	var b [1]byte
	for range 5 {
		began := time.Now()
		_, err := e.to.Write(b[:])
		require.NoError(e.t, err)
		_, err = io.ReadFull(e.from, b[:])
		require.NoError(e.t, err)
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

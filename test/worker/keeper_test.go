package worker_test

import (
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/worker"
)

// TestMain lets the test binary run as a keeper and as a worker.
func TestMain(m *testing.M) {
	worker.MaybeRun()
	os.Exit(m.Run())
}

// TestKeeper: a keeper starts workers. They execute commands over TCP, end on request, and can be killed.
func TestKeeper(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	keeper := exec.Command("/proc/self/exe")
	keeper.Env = append(os.Environ(), worker.EnvKeep+"="+addr)
	require.NoError(t, keeper.Start())
	host, err := worker.Dial(addr)
	require.NoError(t, err)
	require.Equal(t, "here", host.Run(t, "echo", "here"))

	a, b := host.Start(t, worker.Options{Setenv: []string{"X=1"}}), host.Start(t, worker.Options{})
	require.NotEqual(t, a.Pid(), b.Pid())
	require.Positive(t, a.Stats().Threads)
	require.NoError(t, a.Exit())
	b.Kill()
	how, ok := b.Wait()
	require.False(t, ok)
	require.Equal(t, "signal: killed", how)

	host.Close()
	require.NoError(t, keeper.Wait())
}

package peer

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An error of poll is no end of a process, neither for who asks nor for who waits; an end is one for both.
func TestExited(t *testing.T) {
	child := exec.Command("sleep", "1000")
	require.NoError(t, child.Start())
	fd, err := unix.PidfdOpen(child.Process.Pid, unix.PIDFD_NONBLOCK)
	require.NoError(t, err)
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()

	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max})) // poll gives EINVAL
	_, failed := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	asked := exited(fd)
	deadline := pidfd.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	waited := awaitExit(pidfd)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, failed, unix.EINVAL)
	require.NoError(t, deadline)
	require.False(t, asked)
	require.False(t, waited)
	require.False(t, exited(1<<20), "a descriptor that is not open")

	require.NoError(t, pidfd.SetReadDeadline(time.Time{}))
	require.False(t, exited(fd))
	require.NoError(t, child.Process.Kill())
	require.True(t, awaitExit(pidfd))
	require.True(t, exited(fd))
	_ = child.Wait()
	require.True(t, exited(fd))
}

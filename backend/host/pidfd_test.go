package host

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// begin starts a process that does nothing until it is killed.
func begin(t *testing.T) (number int, kill func()) {
	c := exec.Command("sleep", "1000")
	require.NoError(t, c.Start())
	kill = func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	t.Cleanup(kill)
	return c.Process.Pid, kill
}

func open(t *testing.T, number int) int {
	fd, err := unix.PidfdOpen(number, 0)
	require.NoError(t, err)
	return fd
}

func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// TestShare: users of one process have one descriptor, which the last of them closes.
func TestShare(t *testing.T) {
	number, _ := begin(t)
	other, _ := begin(t)
	first, second := open(t, number), open(t, number)
	a := SharePidfd(number, first)
	b := SharePidfd(number, second)
	require.False(t, isOpen(second))
	c := SharePidfd(other, open(t, other))
	require.Equal(t, first, a)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	ReleasePidfd(a)
	require.True(t, isOpen(b))
	ReleasePidfd(b)
	require.False(t, isOpen(b))
	ReleasePidfd(c)
	require.Empty(t, pidfds.byFD)
	require.Empty(t, pidfds.byPID)
	require.Equal(t, -1, SharePidfd(number, -1))
	ReleasePidfd(-1)
}

// TestShareOfEnded: the number of a process that has ended may be another's by now, so nobody shares its pidfd.
func TestShareOfEnded(t *testing.T) {
	number, kill := begin(t)
	old := SharePidfd(number, open(t, number))
	kill()
	require.True(t, ProcessEnded(old))
	next, _ := begin(t)
	fd := SharePidfd(number, open(t, next)) // as if it had the number
	require.NotEqual(t, old, fd)
	again := SharePidfd(number, open(t, next))
	require.Equal(t, fd, again)
	ReleasePidfd(old)
	require.True(t, isOpen(fd))
	ReleasePidfd(again)
	ReleasePidfd(fd)
	require.Empty(t, pidfds.byFD)
	require.Empty(t, pidfds.byPID)
}

// TestNoNumber: processes of other pid namespaces share nothing.
func TestNoNumber(t *testing.T) {
	number, _ := begin(t)
	a, b := SharePidfd(0, open(t, number)), SharePidfd(0, open(t, number))
	require.NotEqual(t, a, b)
	ReleasePidfd(a)
	ReleasePidfd(b)
	require.Empty(t, pidfds.byFD)
}

// TestEnded: an error of poll does not mean that the process has ended. A real end is reported.
func TestEnded(t *testing.T) {
	number, kill := begin(t)
	fd := open(t, number)
	defer unix.Close(fd)
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max})) // poll returns EINVAL
	_, failed := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	asked := ProcessEnded(fd)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, failed, unix.EINVAL)
	require.False(t, asked)
	require.False(t, ProcessEnded(1<<20), "a descriptor that is not open")
	require.False(t, ProcessEnded(fd))
	kill()
	require.True(t, ProcessEnded(fd))
}

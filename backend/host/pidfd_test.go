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
	a := Share(number, first)
	b := Share(number, second)
	require.False(t, isOpen(second))
	c := Share(other, open(t, other))
	require.Equal(t, first, a)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	Release(a)
	require.True(t, isOpen(b))
	Release(b)
	require.False(t, isOpen(b))
	Release(c)
	require.Empty(t, all.byFD)
	require.Empty(t, all.byPID)
	require.Equal(t, -1, Share(number, -1))
	Release(-1)
}

// TestShareOfEnded: the number of a process that has ended may be another's by now, so nobody shares its pidfd.
func TestShareOfEnded(t *testing.T) {
	number, kill := begin(t)
	old := Share(number, open(t, number))
	kill()
	require.True(t, Ended(old))
	next, _ := begin(t)
	fd := Share(number, open(t, next)) // as if it had the number
	require.NotEqual(t, old, fd)
	again := Share(number, open(t, next))
	require.Equal(t, fd, again)
	Release(old)
	require.True(t, isOpen(fd))
	Release(again)
	Release(fd)
	require.Empty(t, all.byFD)
	require.Empty(t, all.byPID)
}

// TestNoNumber: processes of other pid namespaces share nothing.
func TestNoNumber(t *testing.T) {
	number, _ := begin(t)
	a, b := Share(0, open(t, number)), Share(0, open(t, number))
	require.NotEqual(t, a, b)
	Release(a)
	Release(b)
	require.Empty(t, all.byFD)
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
	asked := Ended(fd)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, failed, unix.EINVAL)
	require.False(t, asked)
	require.False(t, Ended(1<<20), "a descriptor that is not open")
	require.False(t, Ended(fd))
	kill()
	require.True(t, Ended(fd))
}

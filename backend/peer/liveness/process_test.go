package liveness

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/wire"
)

// An error of poll does not mean that the process has ended, neither for exited nor for AwaitExit. A real end is
// reported by both.
func TestExited(t *testing.T) {
	child := exec.Command("sleep", "1000")
	require.NoError(t, child.Start())
	fd, err := unix.PidfdOpen(child.Process.Pid, unix.PIDFD_NONBLOCK)
	require.NoError(t, err)
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()

	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: was.Max})) // poll returns EINVAL
	_, failed := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	asked := exited(fd)
	deadline := pidfd.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	waited := AwaitExit(pidfd)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, failed, unix.EINVAL)
	require.NoError(t, deadline)
	require.False(t, asked)
	require.False(t, waited)
	require.False(t, exited(1<<20), "a descriptor that is not open")

	require.NoError(t, pidfd.SetReadDeadline(time.Time{}))
	require.False(t, exited(fd))
	require.NoError(t, child.Process.Kill())
	require.True(t, AwaitExit(pidfd))
	require.True(t, exited(fd))
	_ = child.Wait()
	require.True(t, exited(fd))
}

// The pid of a process that has ended may be another's: the start time distinguishes the two.
func TestOpenProcess(t *testing.T) {
	child := exec.Command("sleep", "1000")
	require.NoError(t, child.Start())
	p := wire.Process{PID: uint32(child.Process.Pid), NS: Self().NS}
	var err error
	p.Start, err = startTime(strconv.Itoa(child.Process.Pid))
	require.NoError(t, err)
	pidfd, err := OpenProcess(p)
	require.NoError(t, err)
	require.NotNil(t, pidfd)
	defer pidfd.Close()

	earlier := p
	earlier.Start--
	gone, err := OpenProcess(earlier)
	require.NoError(t, err)
	require.Nil(t, gone)

	require.NoError(t, child.Process.Kill())
	require.True(t, AwaitExit(pidfd))
	_ = child.Wait()
	gone, err = OpenProcess(p)
	require.NoError(t, err)
	require.Nil(t, gone)
}

func TestVisible(t *testing.T) {
	own := &wire.ConnBlob{Boot: "b", Process: wire.Process{PID: 1, NS: 2, Start: 3}}
	other := wire.Process{PID: 9, NS: 2, Start: 3}
	require.True(t, Visible(own, "b", other))
	require.False(t, Visible(own, "c", other), "another host")
	require.False(t, Visible(own, "b", own.Process), "ourselves")
	require.False(t, Visible(own, "b", wire.Process{PID: 9, NS: 4}), "another pid namespace")
	require.False(t, Visible(own, "b", wire.Process{NS: 2}), "unknown pid")
	require.False(t, Visible(&wire.ConnBlob{}, "", wire.Process{PID: 9}), "no boot id")
}

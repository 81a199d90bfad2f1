package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/worker"
)

// connections returns descriptors of ours for the TCP connections of a process. Their end ends the process's. The error says that the kernel,
// or a filter of a container, does not hand descriptors over.
func connections(t testing.TB, pid int) (found []int, refused error) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	for _, entry := range list {
		n, _ := strconv.Atoi(entry.Name())
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err == unix.EPERM || err == unix.ENOSYS {
			return found, os.NewSyscallError("pidfd_getfd", err)
		}
		if err != nil {
			continue // closed meanwhile
		}
		proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if _, alone := unix.Getpeername(fd); err != nil || proto != unix.IPPROTO_TCP || alone != nil {
			_ = unix.Close(fd)
			continue
		}
		found = append(found, fd)
	}
	return found, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// shut shuts a connection down: both ends see its end. It returns the ports.
func shut(fd int) string {
	here, _ := unix.Getsockname(fd)
	there, _ := unix.Getpeername(fd)
	_ = unix.Shutdown(fd, unix.SHUT_RDWR) // it may have ended
	return fmt.Sprintf("%v to %v", portOf(here), portOf(there))
}

func portOf(a unix.Sockaddr) int {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// TestIdleConnectionCut: connections that carry nothing are cut, one after the other, at either end. The next transfer is done, soon.
func TestIdleConnectionCut(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, end := range []string{"here", "there"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				p := pair(t, params("log", "info"))
				a, b := p.buffers(1 << 20)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
				x.Do(limit)
				at := map[string]*worker.Agent{"here": p.ini, "there": p.tgt}[end]
				for i := range rounds(6, 30) {
					all, err := connections(t, at.Pid())
					skip.OrFail(t, err)
					require.NotEmpty(t, all)
					what := shut(all[i%len(all)])
					closeAll(all)
					s := x.Try(limit)
					require.Equal(t, nixlapi.Success, s, "round %d, after %s was cut:\n%s\n%s", i, what, p.ini.Output(), p.tgt.Output())
				}
			})
		})
	}
}

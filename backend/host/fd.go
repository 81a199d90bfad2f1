package host

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// LinesTo returns a function that writes a line to a file descriptor. The file may change: the host may put another file
// under the same number. If the file takes no data now, the function waits, also if the host has made the file
// non-blocking.
func LinesTo(fd int) func(line []byte) error {
	return func(line []byte) error {
		for len(line) > 0 {
			n, err := Write(fd, line)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
					return err
				}
			case err != nil:
				return err
			default:
				line = line[n:]
			}
		}
		return nil
	}
}

// NoDescriptorLeft reports that this process, or this host, can open no descriptor. Implements open.
func NoDescriptorLeft() bool {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == unix.EMFILE || err == unix.ENFILE
}

// NobodyWaits reports that accept failed for want of a descriptor or memory, and no connection waits for l: accept takes a descriptor
// before it looks for a connection. l is a listening socket, if it can be asked.
func NobodyWaits(l any, err error) bool {
	s, ok := l.(syscall.Conn)
	if !ok || !Exhausted(err) {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	waits := true
	_ = raw.Control(func(fd uintptr) { waits = Readable(int(fd)) })
	return !waits
}

// Readable reports that a read or accept of a descriptor would not wait.
func Readable(fd int) bool {
	n, _ := PollNow([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}})
	return n > 0
}

// PollNow asks without waiting. A signal may interrupt also that. Implements poll.
func PollNow(fds []unix.PollFd) (n int, err error) {
	for {
		if n, err = unix.Poll(fds, 0); err != unix.EINTR {
			return n, err
		}
	}
}

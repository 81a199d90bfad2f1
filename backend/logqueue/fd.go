package logqueue

import (
	"errors"

	"golang.org/x/sys/unix"
)

// To writes to a file descriptor, as it is at the time: the host may put another file there. It waits for one that takes nothing
// now, also where the host has made it non-blocking.
func To(fd int) func(line []byte) error {
	return func(line []byte) error {
		for len(line) > 0 {
			n, err := unix.Write(fd, line)
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

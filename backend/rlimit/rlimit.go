// Package rlimit is what the engine asks of the process's limits.
package rlimit

import (
	"errors"
	"fmt"
	"syscall"
)

// Advise adds to an error that comes from a limit of the process which one it is and how to raise it.
func Advise(err error) error {
	if !errors.Is(err, syscall.EMFILE) {
		return err
	}
	var l syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return fmt.Errorf("%w: the process has used up its %d file descriptors: raise the limit with ulimit -n", err, l.Cur)
}

// Room checks that there are a few descriptors: Go's runtime opens its poller with the first file, timer or socket, and
// ends the whole process when it cannot.
func Room() error {
	var fds [8]int
	for i := range fds {
		fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
		if err != nil {
			return fmt.Errorf("descriptors for the engine: %w", err)
		}
		defer syscall.Close(fd)
		fds[i] = fd
	}
	return nil
}

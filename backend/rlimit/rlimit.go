// Package rlimit reads and explains the limits of the process.
package rlimit

import (
	"errors"
	"fmt"
	"syscall"
)

// Advise adds to an EMFILE error which limit it comes from and how to raise the limit.
func Advise(err error) error {
	if !errors.Is(err, syscall.EMFILE) {
		return err
	}
	var l syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return fmt.Errorf("%w: the process has used up its %d file descriptors: raise the limit with ulimit -n", err, l.Cur)
}

// Exhausted reports that an error is of this process or this host: it lacks descriptors, memory or a local address and port. The
// peer and the network have no part in it.
func Exhausted(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Room checks that a few descriptors are free. Go's runtime opens its poller with the first file, timer or socket, and
// ends the process if that fails.
func Room() error {
	var fds [8]int
	for i := range fds {
		fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
		if err != nil {
			return fmt.Errorf("no free descriptors for the engine: %w", err)
		}
		defer syscall.Close(fd)
		fds[i] = fd
	}
	return nil
}

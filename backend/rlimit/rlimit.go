// Package rlimit reads and explains the limits of the process.
package rlimit

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
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

// Processors returns the number of processors that the calling thread may use, by its affinity mask, and at most GOMAXPROCS, which Go
// takes from the quota of the cgroup, too. Implements sched_getaffinity(2).
func Processors() int {
	n := runtime.GOMAXPROCS(0)
	var set unix.CPUSet
	if n > 1 && unix.SchedGetaffinity(0, &set) == nil {
		n = min(n, set.Count())
	}
	return n
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

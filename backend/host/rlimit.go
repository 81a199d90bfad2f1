package host

// The limits of the process, read and explained.

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

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

// mostProcs bounds the threads that run Go at a time, and with them the threads that Go makes (cshim/room.cpp). The core in C moves the
// bytes; the widest work in Go is a list that five threads prepare (transfer/plan_share.go).
const mostProcs = 8

// quota is what Go took from the affinity mask and the quota of the cgroup when the process started it.
var quota = runtime.GOMAXPROCS(0)

// Quota returns the number of processors that the process had when Go started, by its affinity mask and the quota of its cgroup.
func Quota() int { return quota }

// CapProcs bounds GOMAXPROCS. The plugin calls it once, before it makes engines. Below the bound Go goes on to follow the cgroup.
func CapProcs() {
	if quota > mostProcs {
		runtime.GOMAXPROCS(mostProcs)
	}
}

// Processors returns the number of processors that the calling thread may use, by its affinity mask and the quota of the cgroup.
// Implements sched_getaffinity(2).
func Processors() int {
	n := quota
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

// scarce is until when descriptors are scarce, in ns. Connections that end leave low numbers, which the next ones get: those say nothing.
var scarce atomic.Int64

const scarceTime = time.Second

// Places is how many connections that have proved nothing the process may keep, of most, when it has accepted another one. It is most until fewer
// than a quarter of the descriptors are free, and then a few for a second: the host needs descriptors, too, and so do peers that have proved who
// they are. The kernel gives the lowest number that is free, so the connection's own tells how many are taken. Safe for concurrent use.
// Implements getrlimit.
func Places(c net.Conn, most int) int {
	own, ok := c.(syscall.Conn)
	if !ok {
		return most
	}
	raw, err := own.SyscallConn()
	if err != nil {
		return most
	}
	var taken uint64
	var l syscall.Rlimit
	if raw.Control(func(fd uintptr) { taken = uint64(fd) }) != nil || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return most
	}
	now := time.Now().UnixNano()
	if taken >= l.Cur-l.Cur/4 {
		scarce.Store(now + int64(scarceTime))
	} else if now >= scarce.Load() {
		return most
	}
	return min(most, max(4, min(most/4, int(l.Cur/16))))
}

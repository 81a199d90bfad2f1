// Package host is what we may do in a process and on a machine that belong to others: its signals, limits, children, descriptors, paths and log.
package host

// Sockets are kept from children of fork: a child that holds a connection hides the end of its process from
// peers and readers.

import (
	"sync"
	"syscall"
)

// ForkCloser has a descriptor closed in children of fork, until release is called. That comes before the descriptor is closed. It is
// safe for concurrent use.
type ForkCloser func(fd int) (release func())

// CloseSocketInForks has a socket closed in children of fork, until release is called. release may be called repeatedly. closer may be nil.
func CloseSocketInForks(closer ForkCloser, c syscall.Conn) (release func()) {
	raw, err := c.SyscallConn()
	if closer == nil || err != nil {
		return func() {}
	}
	release = func() {}
	_ = raw.Control(func(fd uintptr) { release = closer(int(fd)) })
	return sync.OnceFunc(release)
}

// Package host is what we may do in a process and on a machine that belong to others: its signals, limits, children, descriptors, paths and log.
package host

// Sockets are kept from children of fork: a child that holds a connection hides the end of its process from
// peers and readers.

import (
	"sync"
	"syscall"
)

// Descriptors closes its descriptors in children of fork. Release comes before the descriptor is closed. It is safe for
// concurrent use.
type Descriptors interface {
	Hold(fd int)
	Release(fd int)
}

// HoldSocket adds a socket to d. release removes it, and may be called repeatedly. d may be nil.
func HoldSocket(d Descriptors, c syscall.Conn) (release func()) {
	raw, err := c.SyscallConn()
	if d == nil || err != nil {
		return func() {}
	}
	number := -1
	_ = raw.Control(func(fd uintptr) {
		number = int(fd)
		d.Hold(number)
	})
	return sync.OnceFunc(func() {
		if number >= 0 {
			d.Release(number)
		}
	})
}

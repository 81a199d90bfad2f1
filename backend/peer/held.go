package peer

import (
	"net"
	"sync"
	"syscall"
)

// Descriptors keeps sockets from children of fork: a child that holds our connections would hide our death from peers.
// Release comes before the descriptor is closed. Safe for concurrent use.
type Descriptors interface {
	Hold(fd int)
	Release(fd int)
}

// hold enters a socket; release, which may be called again, takes it out.
func (n *Node) hold(c syscall.Conn) (release func()) {
	d := n.cfg.Descriptors
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

// heldConn is a connection that children of fork close.
type heldConn struct {
	*net.TCPConn
	release func()
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.release()
	return c.TCPConn.Close()
}

// held makes a connection one that children of fork close. Others than TCP, as tests have, are left alone.
func (n *Node) held(c net.Conn) net.Conn {
	if t, ok := c.(*net.TCPConn); ok {
		return &heldConn{t, n.hold(t)}
	}
	return c
}

// heldListener is the same of a listener.
type heldListener struct {
	net.Listener
	release func()
}

// Close implements net.Listener.
func (l *heldListener) Close() error {
	l.release()
	return l.Listener.Close()
}

package ipc

import "golang.org/x/sys/unix"

// A message in a socket's queue can hold descriptors, and the close of the socket drops them. If one is the last
// descriptor of a TCP socket that lingers (SO_LINGER), the close takes as long as the sender chose. A process of
// another user could hold up the thread that accepts. Since Linux 6.16 a socket can refuse descriptors.

// maxDrops is the number of connections of other users that a Listener closes at a time, where sockets take
// descriptors.
const maxDrops = 16

// noPassRights makes sockets work as on Linux before 6.16. Tests set it.
var noPassRights bool

// refuseRights makes a socket refuse descriptors; a send that has some fails with EPERM. What connects to a listening
// socket inherits that. Before Linux 6.16 it returns false. Implements SO_PASSRIGHTS.
func refuseRights(sock int) bool {
	return !noPassRights && unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
}

// TakeRights says whether the peer may send descriptors from now on. The peer has to be known. Implements
// SO_PASSRIGHTS.
func (c *Conn) TakeRights(take bool) error {
	if !c.refuses {
		return nil
	}
	value := 0
	if take {
		value = 1
	}
	var err error
	e := c.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) })
	if e != nil {
		return e
	}
	return err
}

// Drop is Close for a connection of a process that CheckUser refuses. It never waits.
func (c *Conn) Drop() {
	if c.refuses {
		c.Close()
		return
	}
	go c.Close()
}

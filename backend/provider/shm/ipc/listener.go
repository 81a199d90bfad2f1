package ipc

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket with a name that the kernel has chosen. It holds no thread. Any process of the
// network namespace can connect; Accept returns the connections that CheckUser accepts.
type Listener struct {
	file    *os.File
	raw     syscall.RawConn
	name    []byte
	refuses bool          // refuseRights worked
	drops   chan struct{} // a place for each unauthenticated connection that is being closed
	ended   chan struct{} // closed by Close
	end     sync.Once
}

// MaxName is the longest socket name that the kernel chooses, with the leading NUL.
const MaxName = 15

// Listen opens a Listener. The error is an *Error.
func Listen(backlog int) (*Listener, error) {
	sock, err := unix.Socket(unix.AF_UNIX, sockType, 0)
	if err != nil {
		return nil, Fail("socket", err)
	}
	l := &Listener{file: os.NewFile(uintptr(sock), "listening unix socket"), refuses: refuseRights(sock), drops: make(chan struct{}, maxDrops), ended: make(chan struct{})}
	if l.name, err = bind(sock, backlog); err == nil {
		l.raw, err = l.file.SyscallConn()
	}
	if err != nil {
		_ = l.file.Close()
		return nil, Fail("bind a unix socket", err)
	}
	return l, nil
}

func bind(sock, backlog int) ([]byte, error) {
	if err := unix.Bind(sock, &unix.SockaddrUnix{}); err != nil { // the kernel chooses a name
		return nil, err
	}
	if err := unix.Listen(sock, backlog); err != nil {
		return nil, err
	}
	sa, err := unix.Getsockname(sock)
	if err != nil {
		return nil, err
	}
	u, ok := sa.(*unix.SockaddrUnix)
	if !ok || len(u.Name) < 2 || u.Name[0] != '@' {
		return nil, unix.EPROTO
	}
	if len(u.Name) > MaxName {
		return nil, unix.ENAMETOOLONG
	}
	return append([]byte{0}, u.Name[1:]...), nil
}

// Name is the socket's name with a leading NUL. The caller must not change it.
func (l *Listener) Name() []byte { return l.name }

// Accept waits for a connection of our user, and closes connections of others. An OutOfResources error: a connection
// is pending and cannot be accepted. os.ErrClosed: the Listener is closed.
func (l *Listener) Accept() (*Conn, error) {
	for {
		c, err := l.accept()
		if err != nil {
			return nil, err
		}
		if _, err := c.CheckUser(); err == nil {
			return c, nil
		}
		l.drop(c)
	}
}

// accept is Accept without the check.
func (l *Listener) accept() (*Conn, error) {
	var sock int
	var err error
	e := l.raw.Read(func(fd uintptr) bool {
		for {
			sock, _, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			switch {
			case err == unix.EINTR || err == unix.ECONNABORTED:
				continue
			case OutOfResources(err) && !readable(int(fd)): // accept4 reports a shortage before it looks for a connection
				return false
			}
			return err != unix.EAGAIN
		}
	})
	if e != nil {
		return nil, waitError(e)
	}
	if err != nil {
		return nil, err
	}
	return newConn(sock, l.refuses)
}

// drop closes an unauthenticated connection. While maxDrops closes are stuck, it waits: each holds a thread and a descriptor.
func (l *Listener) drop(c *Conn) {
	if l.refuses {
		c.Close()
		return
	}
	select {
	case l.drops <- struct{}{}:
	case <-l.ended:
	}
	go func() {
		c.Close()
		select {
		case <-l.drops:
		default:
		}
	}()
}

// Close closes the socket and ends Accept.
func (l *Listener) Close() {
	l.end.Do(func() { close(l.ended) })
	if l.refuses {
		_ = l.file.Close()
		return
	}
	go l.file.Close() // drops what waits to be accepted
}

package ipc

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// Listener is a listening socket: in the abstract namespace, with a name that the kernel has chosen, or in a folder.
// It holds no thread. Any process that finds the name can connect; Accept returns the connections that CheckUser
// accepts.
type Listener struct {
	file     *os.File
	raw      syscall.RawConn
	users    Users
	name     []byte        // in the abstract namespace
	folder   *Folder       // nil: in the abstract namespace
	fileName File          // in folder
	refuses  bool          // refuseRights worked
	drops    chan struct{} // a place for each unauthenticated connection that is being closed
	ended    chan struct{} // closed by Close
	end      sync.Once
}

// Listen opens a Listener in the abstract namespace, for the users that may connect. The error is an *Error.
func Listen(backlog int, users Users) (*Listener, error) {
	l, err := newListener(users)
	if err != nil {
		return nil, err
	}
	if l.name, err = bind(l.sock(), backlog); err != nil {
		_ = l.file.Close()
		return nil, Fail("bind a unix socket", err)
	}
	return l, nil
}

// newListener makes a Listener with a socket that has no name yet. The error is an *Error.
func newListener(users Users) (*Listener, error) {
	l := &Listener{users: users, drops: make(chan struct{}, maxDrops), ended: make(chan struct{})}
	return l, l.renew()
}

// renew makes the socket, and closes one that it replaces.
func (l *Listener) renew() error {
	if l.file != nil {
		_ = l.file.Close()
	}
	sock, err := unix.Socket(unix.AF_UNIX, sockType, 0)
	if err != nil {
		return Fail("socket", err)
	}
	l.file, l.refuses = os.NewFile(uintptr(sock), "listening unix socket"), refuseRights(sock)
	if l.raw, err = l.file.SyscallConn(); err != nil {
		_ = l.file.Close()
	}
	return Fail("socket", err)
}

// sock is the socket's descriptor while nothing else uses the Listener.
func (l *Listener) sock() (sock int) {
	_ = l.raw.Control(func(fd uintptr) { sock = int(fd) })
	return sock
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

// Place is where peers connect: by the abstract name, or in the folder.
func (l *Listener) Place() *Place {
	p := here(l.users)
	p.Abstract, p.File = l.name, l.fileName
	return &p
}

// Accept waits for a connection of a user that may connect, and closes connections of others. An OutOfResources
// error: a connection is pending and cannot be accepted. os.ErrClosed: the Listener is closed.
//
// A user who may not connect may flood the socket, and honest connections wait in the same queue of the kernel. So the check comes before
// all that costs time.
func (l *Listener) Accept() (*Conn, error) {
	for {
		sock, err := l.accept()
		if err != nil {
			return nil, err
		}
		if _, err := checkUser(sock, l.users); err == nil {
			return newConn(sock, l.refuses)
		}
		l.drop(sock)
	}
}

// accept is Accept without the check, and without a Conn.
func (l *Listener) accept() (sock int, err error) {
	e := l.raw.Read(func(fd uintptr) bool {
		for {
			sock, _, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			switch {
			case err == unix.EINTR || err == unix.ECONNABORTED:
				continue
			case OutOfResources(err) && !host.Readable(int(fd)): // accept4 reports a shortage before it looks for a connection
				return false
			}
			return err != unix.EAGAIN
		}
	})
	if e != nil {
		return -1, waitError(e)
	}
	return sock, err
}

// drop closes an unauthenticated connection. While maxDrops closes are stuck, it waits: each holds a thread and a descriptor.
func (l *Listener) drop(sock int) {
	if l.refuses {
		_ = unix.Close(sock)
		return
	}
	select {
	case l.drops <- struct{}{}:
	case <-l.ended:
	}
	go func() {
		_ = unix.Close(sock)
		select {
		case <-l.drops:
		default:
		}
	}()
}

// Close removes the socket from its folder, closes it, and ends Accept.
func (l *Listener) Close() {
	l.end.Do(func() {
		close(l.ended)
		if l.folder != nil {
			_ = unix.Unlinkat(l.folder.fd(), l.fileName.Name(), 0)
		}
	})
	if l.refuses {
		_ = l.file.Close()
		return
	}
	go l.file.Close() // drops what waits to be accepted
}

package ipc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/host"
)

// Error is a failed call or check.
type Error struct {
	Step   string
	Errno  unix.Errno
	Advice string // the obstacle and what to do, as far as the step knows; ""
}

func (e *Error) Error() string {
	if e.Advice != "" {
		return fmt.Sprintf("%s: %v (%s)", e.Step, e.Errno, e.Advice)
	}
	return fmt.Sprintf("%s: %v", e.Step, e.Errno)
}

func (e *Error) Unwrap() error { return e.Errno }

// Fail wraps err in an *Error with that step, and keeps the advice of an *Error; nil stays nil.
func Fail(step string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return &Error{step, e.Errno, e.Advice}
	}
	return &Error{step, Errno(err), ""}
}

// Errno is the system's error number in an error; EIO without one.
func Errno(err error) unix.Errno {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}

// address turns a name as the kernel writes it, with a leading NUL, into a socket address in the abstract namespace.
func address(name []byte) *unix.SockaddrUnix { return &unix.SockaddrUnix{Name: "@" + string(name[1:])} }

const sockType = unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK

// Conn is one end of a connected SOCK_SEQPACKET socket, close-on-exec. It takes no descriptors before TakeRights. Its
// methods are safe for concurrent use.
type Conn struct {
	file    *os.File
	raw     syscall.RawConn
	refuses bool // refuseRights worked
}

func newConn(sock int, refuses bool) (*Conn, error) {
	f := os.NewFile(uintptr(sock), "unix socket")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Conn{f, raw, refuses}, nil
}

// connect connects to a socket and does not wait. EAGAIN: the backlog is full.
func connect(to *unix.SockaddrUnix) (*Conn, error) {
	sock, err := socket()
	if err != nil {
		return nil, err
	}
	refuses := refuseRights(sock)
	if err := unix.Connect(sock, to); err != nil {
		_ = unix.Close(sock)
		return nil, err
	}
	return newConn(sock, refuses)
}

// Close closes the socket and ends a wait in Recv.
func (c *Conn) Close() { _ = c.file.Close() }

// Release returns a duplicate of the socket, which the caller closes, and closes the Conn. After Release this process
// waits on the socket by other means, or not at all.
func (c *Conn) Release() (sock int, err error) {
	defer c.Close()
	sock = -1
	if e := c.raw.Control(func(fd uintptr) { sock, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return sock, err
}

// Deadline bounds the wait in Recv; the zero time means no bound.
func (c *Conn) Deadline(t time.Time) { _ = c.file.SetReadDeadline(t) }

// Recv waits for a message. n = 0 without an error: the peer has closed the connection. Descriptors in the message
// are dropped.
func (c *Conn) Recv(to []byte) (n int, err error) {
	n, _, _, err = c.recv(to, nil, true)
	return n, err
}

// TryRecv is Recv without the wait: EAGAIN if there is no message.
func (c *Conn) TryRecv(to []byte) (n int, err error) {
	n, _, _, err = c.recv(to, nil, false)
	return n, err
}

// Unread reports that a message, or the end of the connection, waits for Recv.
func (c *Conn) Unread() (unread bool) {
	_ = c.raw.Control(func(fd uintptr) { unread = host.Readable(int(fd)) })
	return unread
}

// RecvRights is Recv for a message with up to `most` descriptors. The caller closes them; there may be one more. cut:
// descriptors were lost, because there was no room or because this process is out of descriptors.
func (c *Conn) RecvRights(to []byte, most int) (n int, fds []int, cut bool, err error) {
	oob := make([]byte, unix.CmsgSpace(most*4))
	n, oobn, flags, err := c.recv(to, oob, true)
	if err != nil {
		return 0, nil, false, err
	}
	messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		if rights, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, rights...)
		}
	}
	return n, fds, flags&unix.MSG_CTRUNC != 0, nil
}

func (c *Conn) recv(to, oob []byte, wait bool) (n, oobn, flags int, err error) {
	e := c.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), to, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return !wait || err != unix.EAGAIN
			}
		}
	})
	if e != nil {
		err = waitError(e)
	}
	if err != nil {
		return 0, 0, 0, err
	}
	return n, oobn, flags, nil
}

// waitError is the reason for the end of a wait: the deadline, or Close.
func waitError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return os.ErrClosed
}

// Send sends one message with descriptors, which the caller keeps. It does not wait: EAGAIN.
func (c *Conn) Send(what []byte, fds ...int) (err error) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	e := c.raw.Write(func(fd uintptr) bool {
		for {
			if err = unix.Sendmsg(int(fd), what, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != unix.EINTR { //limit:shm_doorbells
				return true
			}
		}
	})
	return errors.Join(e, err)
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// OutOfResources reports that a call failed for want of descriptors or memory.
func OutOfResources(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS)
}

func socket() (int, error) {
	if err := failpoint.Fail("shm_socket"); err != nil {
		return -1, err
	}
	return unix.Socket(unix.AF_UNIX, sockType, 0)
}

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

// Package nosignal writes without SIGPIPE. That signal ends the process if the host has its default action, and else runs the host's
// handler. Go's net and os packages write by write(2), which raises it where the reader is gone.
package nosignal

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn is a connection of package net.
type Conn interface {
	net.Conn
	syscall.Conn
}

// Send writes all of b to a connection, within its write deadline. Its errors are those of Conn.Write. Safe for concurrent use. Implements
// sendmsg.
func Send(c Conn, b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	release()
	err = raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			m, err := unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_NOSIGNAL)
			switch err {
			case nil:
				n += m
			case unix.EINTR:
			case unix.EAGAIN:
				return false // until there is room
			default:
				failed = os.NewSyscallError("sendmsg", err)
				return true
			}
		}
		return true
	})
	if err == nil && failed != nil {
		err = &net.OpError{Op: "write", Net: c.RemoteAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: failed}
	}
	return n, err
}

// Writer is Send as an io.Writer. It has no other methods of the connection: io.Copy would find ReadFrom, which writes by itself.
func Writer(c Conn) io.Writer { return writer{c} }

type writer struct{ c Conn }

func (w writer) Write(b []byte) (int, error) { return Send(w.c, b) }

// Write is write(2) to a descriptor of any kind: a socket, a pipe, a terminal or a file. Errors: those of write(2), also EINTR and EAGAIN.
func Write(fd int, b []byte) (int, error) {
	n, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL)
	if err != unix.ENOTSOCK {
		return n, err
	}
	return blocked(func() (int, error) { return unix.Write(fd, b) })
}

// blocked calls write with SIGPIPE blocked on this thread, and takes the signal that it has raised: a pipe has no flag for that. One that was
// pending before stays.
func blocked(write func() (int, error)) (n int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pipe, before unix.Sigset_t
	pipe.Val[0] = 1 << (unix.SIGPIPE - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &pipe, &before); err != nil {
		return 0, err
	}
	waits := pending()
	n, err = write()
	if err == unix.EPIPE && !waits {
		var now unix.Timespec
		_, _, _ = unix.Syscall6(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&pipe)), 0, uintptr(unsafe.Pointer(&now)), sigsetSize, 0, 0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return n, err
	}
	return n, err
}

const sigsetSize = 8 // bytes of a signal set, as Linux has it

// pending reports that SIGPIPE waits for this thread or for the process.
func pending() bool {
	var set unix.Sigset_t
	_, _, no := unix.Syscall(unix.SYS_RT_SIGPENDING, uintptr(unsafe.Pointer(&set)), sigsetSize, 0)
	return no == 0 && set.Val[0]&(1<<(unix.SIGPIPE-1)) != 0
}

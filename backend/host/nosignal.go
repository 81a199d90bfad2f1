package host

// Writes without SIGPIPE and SIGXFSZ. These signals end the process if the host has their default action, and else run the
// host's handler. Go's net and os packages write by write(2), which raises them where the reader is gone, and where a file may grow no more.

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

// Grow calls what makes a file larger: ftruncate, fallocate. Beyond the process's limit of file sizes (RLIMIT_FSIZE, also of memory files) the
// kernel raises SIGXFSZ, which ends the process; here there is the error EFBIG alone. The error is the call's.
func Grow(call func() error) error {
	_, err := blocked(func() (int, error) { return 0, call() })
	return err
}

// raised has the errors of calls that raise a signal on their thread.
var raised = map[error]unix.Signal{unix.EPIPE: unix.SIGPIPE, unix.EFBIG: unix.SIGXFSZ}

// blocked makes a call with these signals blocked on this thread, and takes the one that it has raised: a pipe and a file have no flag for
// that. One that was pending before stays.
func blocked(call func() (int, error)) (n int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	both, before := set(unix.SIGPIPE, unix.SIGXFSZ), unix.Sigset_t{}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &both, &before); err != nil {
		return 0, err
	}
	waits := pending()
	n, err = call()
	if signal, ok := raised[err]; ok && waits.Val[0]&set(signal).Val[0] == 0 {
		one, now := set(signal), unix.Timespec{}
		_, _, _ = unix.Syscall6(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&one)), 0, uintptr(unsafe.Pointer(&now)), sigsetSize, 0, 0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return n, err
	}
	return n, err
}

func set(signals ...unix.Signal) (s unix.Sigset_t) {
	for _, signal := range signals {
		s.Val[0] |= 1 << (signal - 1)
	}
	return s
}

const sigsetSize = 8 // bytes of a signal set, as Linux has it

// pending are the signals that wait for this thread or for the process.
func pending() (s unix.Sigset_t) {
	_, _, _ = unix.Syscall(unix.SYS_RT_SIGPENDING, uintptr(unsafe.Pointer(&s)), sigsetSize, 0)
	return s
}

package ipc

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

// Proof names a listening process and the address of secret bytes in its memory. A peer knows the bytes only if it
// can read that memory.
type Proof struct {
	Name  []byte // name of the process's socket
	At    uint64 // address of the bytes
	Bytes Token
}

// Reach tries whether this process may read the memory of the process that offers the proof. pid is that process, or
// 0 if unknown. No endpoint is needed. The error is an *Error. Implements process_vm_readv.
func (p *Proof) Reach() (pid int, err error) {
	const tries, pause = 10, time.Millisecond // while the socket's backlog is full
	c, err := Dial(p.Name)
	for i := 0; i < tries && err != nil && Errno(err) == unix.EAGAIN; i++ {
		time.Sleep(pause)
		c, err = Dial(p.Name)
	}
	if err != nil {
		if e := err.(*Error); e.Errno == unix.ECONNREFUSED {
			e.Errno = unix.ESRCH
		}
		return 0, err
	}
	defer c.Drop()                               // its listener may be anybody
	pid, pidfd, err := c.identify(Ticks(), true) // a listener without endpoints closes at once; the bytes are the proof
	if err != nil {
		return pid, Fail(Checking, err)
	}
	defer unix.Close(pidfd)
	return pid, Fail("process_vm_readv", p.read(pid, pidfd))
}

func (p *Proof) read(pid, pidfd int) error {
	seen := make([]byte, TokenSize)
	here := []unix.Iovec{{Base: &seen[0], Len: TokenSize}}
	n, err := unix.ProcessVMReadv(pid, here, []unix.RemoteIovec{{Base: uintptr(p.At), Len: TokenSize}}, 0)
	switch {
	case err != nil:
		return err
	case n != TokenSize:
		return unix.EIO
	case Ended(pidfd): // the bytes may come from another process
		return unix.ESRCH
	case !bytes.Equal(seen, p.Bytes[:]):
		return unix.EBADMSG
	}
	return nil
}

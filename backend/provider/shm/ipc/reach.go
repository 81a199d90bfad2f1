package ipc

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"
)

// TokenSize is how many bytes nobody can guess.
const TokenSize = 16

// Proof is where a peer finds bytes that it can know by nothing but reading them: in the process that listens there.
type Proof struct {
	Name  []byte // of its socket
	At    uint64 // their address
	Bytes [TokenSize]byte
}

// Reach tries whether this process may read the memory of the one that offers the proof, which is pid, 0 if that is not known. It asks for
// nothing but the process: there need be no endpoint yet. The error is an *Error. Implements process_vm_readv.
func (p *Proof) Reach() (pid int, err error) {
	const tries, nap = 10, time.Millisecond // while its socket's queue is full
	c, err := Dial(p.Name)
	for i := 0; i < tries && err != nil && Errno(err) == unix.EAGAIN; i++ {
		time.Sleep(nap)
		c, err = Dial(p.Name)
	}
	if err != nil {
		if e := err.(*Error); e.Errno == unix.ECONNREFUSED {
			e.Errno = unix.ESRCH
		}
		return 0, err
	}
	defer c.Close()
	pid, pidfd, err := c.Identify(Ticks())
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
	case Ended(pidfd): // it may have been another's memory
		return unix.ESRCH
	case !bytes.Equal(seen, p.Bytes[:]):
		return unix.EBADMSG
	}
	return nil
}

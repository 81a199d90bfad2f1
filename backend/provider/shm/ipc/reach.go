package ipc

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// Proof names a listening process and the address of secret bytes in its memory. A process with direct access to that
// memory can compare them.
type Proof struct {
	Place Place
	At    uint64 // address of the bytes
	Bytes Token
}

// Reached is the process that a Proof names.
type Reached struct {
	PID    int        // 0: it has no number in our pid namespace
	Direct bool       // we may copy to and from its memory
	Why    string     // not Direct: the reason
	Errno  unix.Errno // not Direct: the error by which the kernel forbids the access; 0: another reason
}

// Reach connects to the process that offers the proof, and finds out whether this process may copy to and from its
// memory. It asks the other process nothing, which may be stopped. The error is an *Error. Implements
// process_vm_readv.
func (p *Proof) Reach(h *Host) (r Reached, err error) {
	const tries, pause = 1000, time.Millisecond // while the socket's backlog is full: somebody floods it, or the process is stopped
	c, err := Dial(&p.Place, h.Folder)
	for i := 0; i < tries && err != nil && Errno(err) == unix.EAGAIN; i++ {
		time.Sleep(pause)
		c, err = Dial(&p.Place, h.Folder)
	}
	if err != nil {
		if e := err.(*Error); e.Errno == unix.ECONNREFUSED {
			e.Errno = unix.ESRCH
		}
		return r, err
	}
	defer c.Drop()                                        // its listener may be anybody
	who, pidfd, err := c.identify(h.Users, Ticks(), true) // a listener without endpoints closes at once; the bytes are the proof
	r.PID = who.PID
	if err != nil {
		return r, Fail(Checking, err)
	}
	if pidfd >= 0 {
		defer unix.Close(pidfd)
	}
	if !who.SameUser && p.Place.Users != AnyUser {
		return r, &Error{Checking, unix.EACCES, "the peer serves its own user alone: set local_peers=any-with-token there, too"}
	}
	if r.Why = p.Place.Apart(who); r.Why != "" {
		return r, nil
	}
	err = p.read(r.PID, pidfd)
	switch errno := Errno(err); {
	case err == nil:
		r.Direct = true
	case forbids(errno):
		r.Why, r.Errno, err = "process_vm_readv: "+errno.Error(), errno, nil
	}
	return r, Fail("process_vm_readv", err)
}

// Apart says why we do not access the memory of a process with this Place directly; "": nothing known speaks against
// it. The Place may be a claim: the kernel decides about each access.
func (p *Place) Apart(who Process) string {
	switch {
	case !p.SamePIDs():
		return "the peer is in another pid namespace"
	case !p.sameNet():
		return "the peer is in another network namespace"
	case who.PID == 0:
		return "the peer has no process number in this pid namespace"
	case !who.SameUser:
		return "the peer runs as another user"
	}
	return ""
}

// MayAccess reports that the kernel lets us access the memory of a process. Implements process_vm_readv.
func MayAccess(pid int) bool {
	if pid == os.Getpid() {
		return true
	}
	var b [1]byte
	here, there := []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: 0, Len: 1}}
	_, err := unix.ProcessVMReadv(pid, here, there, 0) // EFAULT: nothing is mapped there, and the kernel looked
	return err == nil || !forbids(Errno(err))
}

// forbids reports that an error of process_vm_readv is about the right, not about the process or its memory.
func forbids(errno unix.Errno) bool {
	switch errno {
	case unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EXDEV:
		return true
	}
	return false
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
	case host.ProcessEnded(pidfd): // the bytes may come from another process
		return unix.ESRCH
	case !bytes.Equal(seen, p.Bytes[:]):
		return unix.EBADMSG
	}
	return nil
}

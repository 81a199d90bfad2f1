package ipc

import (
	"encoding/binary"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// accept serves the connection that has shown the endpoint's token, until the peer's descriptors have arrived. False:
// the endpoint has ended, and the caller closes the connection.
func (e *Handshake) accept(c *pendingConn) bool {
	if !e.startTask(&e.in, c.conn) {
		return false
	}
	defer e.tasks.Done()
	who, pidfd, err := c.conn.Identify(e.l.host.Users, c.ticks)
	if err != nil {
		ended := err == unix.ESRCH
		if ended {
			err = unix.ECONNRESET
		}
		e.fail(Fail(Checking, err), ended)
		return true
	}
	e.owner.Identified(who.PID, pidfd)
	if err := c.conn.TakeRights(true); err != nil {
		e.fail(Fail("take the peer's descriptors", err), false)
		return true
	}
	_ = c.conn.Send([]byte{helloFollows}) // the answer that dialer.accepted waits for
	c.conn.Deadline(time.Time{})
	if err := e.connected(c, who); err != nil {
		e.fail(err, false)
	}
	return true
}

// connected receives the message with the peer's descriptors and maps the segments.
func (e *Handshake) connected(c *pendingConn, who Process) error {
	var b [5]byte
	n, fds, cut, err := c.conn.RecvRights(b[:], numRights)
	_ = c.conn.TakeRights(false) // none are due on a doorbell
	p := &Peer{Self: who.PID == os.Getpid(), Sock: -1}
	p.Apart = e.l.sizes.Rings || !p.Self && apart(&c.hello, who)
	switch good := n == 4 && binary.NativeEndian.Uint32(b[:]) == helloMagic; {
	case err != nil || n == 0:
		CloseAll(fds)
		return Fail("receive the peer's descriptors", unix.ECONNRESET)
	case good && len(fds) == numRights:
		err = p.mapAll(fds, e.l.sizes)
	case cut && len(fds) < numRights:
		err = unix.EMFILE
	default:
		err = unix.EPROTO
	}
	CloseAll(fds) // before this function opens other descriptors
	if err == nil {
		p.Sock, err = e.release(&e.in)
	}
	if err == nil {
		p.Assist = p.mayAssist()
		err = e.owner.Connected(p)
	}
	if err != nil {
		p.drop(e.l.sizes)
	}
	return Fail("map the peer's segments", err)
}

// apart reports that we do not copy to and from the process's memory directly.
func apart(h *hello, who Process) bool {
	place := Place{NetNS: h.NetNS, PidNS: h.PidNS}
	return place.Apart(who) != "" || !MayAccess(who.PID)
}

func (p *Peer) mapAll(fds []int, s SegmentSizes) (err error) {
	if p.Segment, err = Map(fds[0], s.Segment, false); err != nil {
		return err
	}
	if p.Table, err = Map(fds[1], s.Table, true); err != nil {
		return err
	}
	if p.Shares, err = Map(fds[2], s.Shares, true); err != nil {
		return err
	}
	if p.Apart || !p.Self {
		p.Ring, p.RingSize, err = MapRing(fds[3], s.RingUnit)
	}
	return err
}

// drop unmaps and closes everything that no owner has taken.
func (p *Peer) drop(s SegmentSizes) {
	for _, m := range []struct {
		at   unsafe.Pointer
		size uintptr
	}{{p.Segment, s.Segment}, {p.Table, s.Table}, {p.Shares, s.Shares}, {p.Ring, uintptr(p.RingSize)}} {
		if m.at != nil {
			_ = unix.MunmapPtr(m.at, m.size)
		}
	}
	if p.Sock >= 0 {
		_ = unix.Close(p.Sock)
	}
}

// mayAssist reports that we may copy for a peer, to and from its memory. We must not have more rights than the peer: a peer
// that executes a more privileged program could reach that program's memory through us. A peer that we may access directly runs as our user.
func (p *Peer) mayAssist() bool {
	return !p.Self && !p.Apart && !morePrivileged() && host.OwnProc()
}

// morePrivileged reports that this process may access processes which a peer of the same user may not.
func morePrivileged() bool {
	if unix.Getuid() != unix.Geteuid() {
		return true
	}
	var may [2]unix.CapUserData
	who := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Geteuid() != 0 && (unix.Capget(&who, &may[0]) != nil || may[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0)
}

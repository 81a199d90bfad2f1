package core

// #include "gr_policy.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"
)

// Role is our end of a link's session.
type Role int

// Roles.
const (
	Initiator Role = C.GR_LINK_TX // posts transfers, sends notifications
	Target    Role = C.GR_LINK_RX // receives notifications
)

// Session is one direction between two engines.
type Session struct {
	s  *C.gr_sess
	ID uint64 // from NewSession
}

// NewSession makes a session. Message events carry id. name is the sender's name of received notifications.
func (k *Core) NewSession(id uint64, name string) (Session, error) {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	s := C.gr_sess_new(k.c, C.uint64_t(id), p, C.size_t(len(name)))
	if s == nil {
		return Session{}, syscall.ENOMEM
	}
	return Session{s, id}, nil
}

// Continue sets the first sequence number, before the first link: both ends continue the numbers of a lost session. held:
// Go holds messages behind next.
func (s Session) Continue(next uint64, held bool) {
	h := C.int(0)
	if held {
		h = 1
	}
	C.gr_sess_continue(s.s, C.uint64_t(next), h)
}

// End drops all messages that arrive from now on: neither Go nor the application gets any. Implements gr_sess_end.
func (s Session) End() { C.gr_sess_end(s.s) }

// Free frees the session after its links. Notifications that wait can still be taken.
func (s Session) Free() {
	if s.s != nil {
		C.gr_sess_free(s.s)
	}
}

// SetNotifLink sets the session's notification link.
func (s Session) SetNotifLink(l Link) { C.gr_sess_set_notif_link(s.s, l.l) }

// Deliver queues a message for the application that Go has put in order.
func (s Session) Deliver(msg []byte) error {
	if rc := C.gr_sess_deliver(s.s, bytesPtr(msg), C.size_t(len(msg))); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Handled reports that Go has dealt with a message of so many bytes. Until then its bytes count as undelivered.
func (s Session) Handled(n int) { C.gr_sess_handled(s.s, C.size_t(n)) }

// Resume lets C take messages in alone again from next on, unless C has handed more messages to Go than handled.
func (s Session) Resume(next, handled uint64) {
	C.gr_sess_resume(s.s, C.uint64_t(next), C.uint64_t(handled))
}

// NextSeq returns the number that C expects next, stale while Go reorders, and how many messages C has handed to Go so far.
func (s Session) NextSeq() (next, handed uint64) {
	var h C.uint64_t
	n := C.gr_sess_next_seq(s.s, &h)
	return uint64(n), uint64(h)
}

// Queued returns how many bytes of notifications were accepted and not yet sent.
func (s Session) Queued() uint64 { return uint64(C.gr_sess_queued(s.s)) }

// Sent returns how many notifications have a number: posted at least once, or given up since.
func (s Session) Sent() uint64 { return uint64(C.gr_sess_sent(s.s)) }

// Link is a session's endpoint pair on one pair of rails.
type Link struct{ l *C.gr_link }

// NewLink makes a link over an endpoint and posts its receives. id and peerID are both sides' numbers of the link. peerRail
// selects the key slot of remote regions. An error may come with a link (Link.Exists): the caller then closes the endpoint
// and ends the link. For probe see Rebind.
func (s Session) NewLink(rail, peerRail int, ep unsafe.Pointer, id, peerID uint64, role Role, probe bool) (Link, error) {
	var l *C.gr_link
	only := C.int(0)
	if probe {
		only = 1
	}
	rc := C.gr_link_new(s.s, C.int(rail), C.int(peerRail), ep, C.uint64_t(id), C.uint64_t(peerID), C.int(role), only, &l)
	if l == nil {
		return Link{}, syscall.Errno(-rc)
	}
	if rc != 0 {
		return Link{l}, syscall.Errno(-rc)
	}
	return Link{l}, nil
}

// Exists reports whether there is a link.
func (l Link) Exists() bool { return l.l != nil }

// Stop ends posting. Reap ends all operations in flight, after the endpoint was closed. Rebind continues on a new endpoint
// and replays. Fail ends everything queued with a status. Free frees the link.
func (l Link) Stop()             { C.gr_link_stop(l.l) }
func (l Link) Reap()             { C.gr_link_reap(l.l) }
func (l Link) Fail(status int32) { C.gr_link_fail(l.l, C.int(status)) }
func (l Link) Free()             { C.gr_link_free(l.l) }

// Proof is what the target's answer to a fence proves: notifications below Next have arrived, and those in Have, ascending.
type Proof struct {
	Next uint64
	Have []uint64
}

func (p Proof) c(pin *runtime.Pinner) C.gr_proof {
	c := C.gr_proof{next: C.uint64_t(p.Next), nhave: C.size_t(len(p.Have))}
	if len(p.Have) > 0 {
		pin.Pin(&p.Have[0])
		c.have = (*C.uint64_t)(unsafe.Pointer(&p.Have[0]))
	}
	return c
}

// Rebind continues on a new endpoint; see Stop. With probe the link sends only a probe. An event of Code 0 reports the
// peer's answer, and Up then lets the link work. Events carry the epoch.
func (l Link) Rebind(ep unsafe.Pointer, epoch uint32, proof Proof, probe bool) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	c := proof.c(&pin)
	only := C.int(0)
	if probe {
		only = 1
	}
	if rc := C.gr_link_rebind(l.l, ep, C.uint32_t(epoch), &c, only); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Up lets a probed link work; see Rebind.
func (l Link) Up() { C.gr_link_up(l.l) }

// HandBack hands the link's work to other links of the session; after Reap and the target's answer to the fence. The
// session's notification link must be another link by then.
func (l Link) HandBack(proof Proof) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c := proof.c(&pin)
	C.gr_link_hand_back(l.l, &c)
}

// Finalize ends transfers with a failed operation on a link that has stopped and drained. It replaces Reap where the
// endpoint is shared and stays open.
func (l Link) Finalize() { C.gr_link_finalize(l.l) }

// Unproved reports, after Reap, whether failed operations exist whose bytes may land until the peer's endpoint is closed.
func (l Link) Unproved() bool { return C.gr_link_unproved(l.l) != 0 }

// Abandon ends failed transfers of a link without the peer's answer to the fence. The link's endpoint must be closed and
// reaped. READs end; with writes, WRITEs end too, though their bytes may then still land at the peer.
func (l Link) Abandon(writes bool) {
	w := C.int(0)
	if writes {
		w = 1
	}
	C.gr_link_abandon(l.l, w)
}

// SetWeight sets the link's speed relative to the session's other links. It counts until all links have a measured rate.
func (l Link) SetWeight(w uint64) { C.gr_link_weight(l.l, C.uint64_t(w)) }

// CatchUp takes in the completions from before the call, on an endpoint that stays open. Implements gr_link_catch_up.
func (l Link) CatchUp() { C.gr_link_catch_up(l.l) }

// Notify queues a notification without a transfer. ErrFull when the session's limit is reached.
func (l Link) Notify(msg []byte) error {
	switch rc := C.gr_notify(l.l, bytesPtr(msg), C.size_t(len(msg))); {
	case rc == 0:
		return nil
	case errors.Is(syscall.Errno(-rc), syscall.EAGAIN):
		return ErrFull
	default:
		return syscall.Errno(-rc)
	}
}

// Taken is a notification that a link had still to deliver.
type Taken struct {
	Seq      uint64 // if Numbered: its number; the peer may have the notification
	Numbered bool
	Skip     bool // a SKIP instead of a notification: the peer goes on without the number
	Body     []byte
}

// Resend queues a taken notification in a later session, whatever the limit. A numbered notification keeps m.Seq.
// Implements gr_notify_again.
func (l Link) Resend(m Taken) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	t := C.gr_taken{seq: C.uint64_t(m.Seq), len: C.uint64_t(len(m.Body))}
	if m.Numbered {
		t.numbered = 1
	}
	if m.Skip {
		t.skip = 1
	}
	if len(m.Body) > 0 {
		pin.Pin(&m.Body[0])
		t.body = unsafe.Pointer(&m.Body[0])
	}
	if rc := C.gr_notify_again(l.l, &t); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Numbered returns how many numbered messages the link still has, with those of transfers, and the lowest number. It changes nothing.
// Implements gr_link_numbered.
func (l Link) Numbered() (n int, first uint64) {
	var low C.uint64_t
	n = int(C.gr_link_numbered(l.l, &low))
	return n, uint64(low)
}

// FailUnacked makes transfers whose notification is on the wire end in an error: their session ends, and nothing will tell whether the peer
// has it. Implements gr_link_fail_unacked.
func (l Link) FailUnacked() { C.gr_link_fail_unacked(l.l) }

// TakeNotif takes a notification that has no transfer and no acknowledgement. The link must be stopped, and reaped unless
// its endpoint is shared. false: there is none left. Implements gr_link_take_msg.
func (l Link) TakeNotif() (Taken, bool) {
	var t C.gr_taken
	if C.gr_link_take_msg(l.l, &t) != 1 {
		return Taken{}, false
	}
	defer C.gr_taken_free(&t)
	return Taken{Seq: uint64(t.seq), Numbered: t.numbered != 0, Body: C.GoBytes(t.body, C.int(t.len))}, true
}

// LinkState is the state of a link.
type LinkState int32

// States of a link.
const (
	LinkUp      LinkState = C.GR_LINK_STATE_UP      // the link posts
	LinkStopped LinkState = C.GR_LINK_STATE_STOPPED // the link waits for Stop, Reap, and Rebind or Fail
	LinkDead    LinkState = C.GR_LINK_STATE_DEAD    // Fail was called
	LinkProbing LinkState = C.GR_LINK_STATE_PROBING // only a probe may go out
)

// LinkStats is a snapshot of a link. Units: bytes, bytes per second, counts.
type LinkStats struct {
	Completions, Errors, InflightBytes, Window, Rate uint64
	InflightOps, Credits, QueuedMsgs, QueuedSubs     uint32
	State                                            LinkState
}

// Stats takes a snapshot under the rail's lock, so that all its values belong to one moment. Tally reads the counters
// without the lock.
func (l Link) Stats() LinkStats {
	var s C.gr_link_stats
	C.gr_link_stats_get(l.l, &s)
	return LinkStats{uint64(s.completions), uint64(s.errors), uint64(s.inflight_bytes), uint64(s.window), uint64(s.rate),
		uint32(s.inflight_ops), uint32(s.credits), uint32(s.queued_msgs), uint32(s.queued_subs), LinkState(s.state)}
}

func bytesPtr(b []byte) unsafe.Pointer {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Pointer(&b[0])
}

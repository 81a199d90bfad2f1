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

// Role of a link: which end of the session we are.
type Role int

// Roles.
const (
	Initiator Role = C.GR_LINK_TX // posts transfers, sends notifications
	Target    Role = C.GR_LINK_RX // takes notifications in
)

// Session is one direction between two engines.
type Session struct{ s *C.gr_sess }

// NewSession makes a session; id comes back in message events, name is the sender's for notifications taken in.
func (k *Core) NewSession(id uint64, name string) (Session, error) {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	s := C.gr_sess_new(k.c, C.uint64_t(id), p, C.size_t(len(name)))
	if s == nil {
		return Session{}, syscall.ENOMEM
	}
	return Session{s}, nil
}

// Continue begins the numbers with next, before the first link: both ends' sessions go on from one that was lost. held: Go holds messages behind
// next.
func (s Session) Continue(next uint64, held bool) {
	h := C.int(0)
	if held {
		h = 1
	}
	C.gr_sess_continue(s.s, C.uint64_t(next), h)
}

// End ends the taking in of messages: nothing more is handed to Go or to the application. Implements gr_sess_end.
func (s Session) End() { C.gr_sess_end(s.s) }

// Free gives the session up after its links; notifications not yet taken stay deliverable.
func (s Session) Free() {
	if s.s != nil {
		C.gr_sess_free(s.s)
	}
}

// SetNotifLink says which link notifications go out on.
func (s Session) SetNotifLink(l Link) { C.gr_sess_set_notif_link(s.s, l.l) }

// Deliver appends a message that Go has put in order.
func (s Session) Deliver(msg []byte) error {
	if rc := C.gr_sess_deliver(s.s, bytesPtr(msg), C.size_t(len(msg))); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Handled says that a message of so many bytes, which C handed over, has been dealt with: until then it counts as undelivered.
func (s Session) Handled(n int) { C.gr_sess_handled(s.s, C.size_t(n)) }

// Resume lets C take messages in by itself again from next on, unless more were handed to Go than handled.
func (s Session) Resume(next, handled uint64) {
	C.gr_sess_resume(s.s, C.uint64_t(next), C.uint64_t(handled))
}

// NextSeq is the number that C expects next, stale while Go puts messages in order, and how many messages C has handed
// to Go so far.
func (s Session) NextSeq() (next, handed uint64) {
	var h C.uint64_t
	n := C.gr_sess_next_seq(s.s, &h)
	return uint64(n), uint64(h)
}

// Queued is how many bytes of notifications were accepted and not yet sent.
func (s Session) Queued() uint64 { return uint64(C.gr_sess_queued(s.s)) }

// Sent is how many notifications have been numbered: posted at least once, or given up since.
func (s Session) Sent() uint64 { return uint64(C.gr_sess_sent(s.s)) }

// Link is a session's share of one rail.
type Link struct{ l *C.gr_link }

// NewLink makes a link over an endpoint and posts its receives. id and peerID are both sides' numbers of it. peerRail selects the key slot of remote regions. With an
// error there may be a link all the same (Link.Exists): the caller closes the endpoint and then ends the link. For probe see
// Rebind.
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

// Exists says that there is a link.
func (l Link) Exists() bool { return l.l != nil }

// Stop ends posting; Reap, after the endpoint was closed, ends every operation that was under way; Rebind goes on with
// a new endpoint and replays; Fail ends everything queued with a status; Free gives the link up.
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

// Rebind: see Stop. With probe the link sends nothing but a probe; an event of Code 0 says that it is through, and Up
// lets the link work. Events carry the epoch.
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

// Up: see Rebind.
func (l Link) Up() { C.gr_link_up(l.l) }

// HandBack gives what the link has to other links of the session; after Reap, when the target has answered the fence. The
// session's notif_link must be another link by then.
func (l Link) HandBack(proof Proof) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c := proof.c(&pin)
	C.gr_link_hand_back(l.l, &c)
}

// Finalize ends the transfers of which an operation failed on a link that has stopped and drained; instead of Reap, where
// the endpoint is shared and stays.
func (l Link) Finalize() { C.gr_link_finalize(l.l) }

// Unproved says, after Reap, that operations failed whose bytes may land until the peer's end is closed.
func (l Link) Unproved() bool { return C.gr_link_unproved(l.l) != 0 }

// Abandon ends transfers that have failed on a link whose endpoint is closed and reaped, though the peer has not answered the fence: READs, and
// with writes WRITEs, of which bytes may then still land at the peer.
func (l Link) Abandon(writes bool) {
	w := C.int(0)
	if writes {
		w = 1
	}
	C.gr_link_abandon(l.l, w)
}

// SetWeight gives the link's speed relative to the session's others; it counts until rates have been measured.
func (l Link) SetWeight(w uint64) { C.gr_link_weight(l.l, C.uint64_t(w)) }

// CatchUp takes in what had completed before the call, on an endpoint that stays. Implements gr_link_catch_up.
func (l Link) CatchUp() { C.gr_link_catch_up(l.l) }

// Notify queues a notification of no transfer. ErrFull when the session's limit is reached.
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
	Seq      uint64 // if Numbered: the peer may have it
	Numbered bool
	Skip     bool // no notification: the peer goes on without the number
	Body     []byte
}

// Resend queues one that was taken, in a later session and with the number that it has now, whatever is queued already. Implements gr_notify_again.
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

// Numbered is how many messages with a number the link still has, transfers' among them, and the lowest; transfers that have one posted end in
// an error. Implements gr_link_numbered.
func (l Link) Numbered() (n int, first uint64) {
	var low C.uint64_t
	n = int(C.gr_link_numbered(l.l, &low))
	return n, uint64(low)
}

// TakeNotif takes a notification of no transfer that the peer is not known to have, from a link that has stopped and, unless its endpoint is
// shared, was reaped; false: there is none, or no memory. Implements gr_link_take_msg.
func (l Link) TakeNotif() (Taken, bool) {
	var t C.gr_taken
	if C.gr_link_take_msg(l.l, &t) != 1 {
		return Taken{}, false
	}
	defer C.free(t.body)
	return Taken{Seq: uint64(t.seq), Numbered: t.numbered != 0, Body: C.GoBytes(t.body, C.int(t.len))}, true
}

// LinkState is what a link does.
type LinkState int32

// States of a link.
const (
	LinkUp      LinkState = C.GR_LINK_STATE_UP      // it posts
	LinkStopped LinkState = C.GR_LINK_STATE_STOPPED // it waits for Stop, Reap and Rebind or Fail
	LinkDead    LinkState = C.GR_LINK_STATE_DEAD    // Fail was called
	LinkProbing LinkState = C.GR_LINK_STATE_PROBING // a probe is on its way
)

// LinkStats is a snapshot of a link. Bytes, bytes per second, counts.
type LinkStats struct {
	Completions, Errors, InflightBytes, Window, Rate uint64
	InflightOps, Credits, QueuedMsgs, QueuedParts    uint32
	State                                            LinkState
}

// Stats takes a snapshot under the rail's lock: what it says of the link's state was true of one moment. Counters without
// it: Tally.
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

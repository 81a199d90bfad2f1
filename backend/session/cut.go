package session

// The network to a peer is cut, and is whole again. TCP sees that late: it sends again after pauses that double. So what the peer owes is asked for on the
// control channel (peer.Out.Overdue), which tries for another connection all the time. When it has one, links whose TCP still waits are fenced, and go on over
// new connections.

import (
	"net/netip"
	"slices"
	"time"

	"gorail/backend/peer"
	"gorail/backend/provider"
)

const (
	cutOver = "the peer is reached again, and TCP waits before it sends again on this link"
	// calmFor is the time after another connection of the control channel in which a fence does not make it look for the next one.
	calmFor = 500 * time.Millisecond
)

// unanswered reports that the kernel sends the link's bytes again and again: see provider.Listener. Under the lock of the link's session.
func (l *Link) unanswered(settled bool) bool {
	if !l.Up || l.Phase != Working || l.Shared() {
		return false
	}
	listener, ok := l.EP.(provider.Listener)
	return ok && listener.Unanswered(settled)
}

// over reports that the link is between these addresses. Under the lock of the link's session.
func (l *Link) over(own, peer netip.Addr) bool {
	listener, ok := l.EP.(provider.Listener)
	if !ok {
		return false
	}
	a, b := listener.Ends()
	return at(a) == own && at(b) == peer
}

// at is the address of an address with a port.
func at(text string) netip.Addr {
	a, _ := netip.ParseAddrPort(text)
	return a.Addr().Unmap().WithZone("")
}

// cut returns the links to fence when the peer is reached again, between these addresses: those without an answer. If links of other rails have answers, the
// option rail_timeout decides about rails that may be silent still. Links over the way that works come last: then they have the work of the others, since the
// last one is fenced to open. Under the lock of the links' session.
func cut(links []*Link, own, peer netip.Addr) (list []*Link) {
	healthy := false
	for _, l := range links {
		if l.unanswered(false) {
			list = append(list, l)
		} else {
			healthy = healthy || l.Up && l.Phase == Working
		}
	}
	if healthy {
		list = slices.DeleteFunc(list, func(l *Link) bool { return !l.over(own, peer) })
	}
	slices.SortStableFunc(list, func(a, b *Link) int { return rank(a.over(own, peer)) - rank(b.over(own, peer)) })
	return list
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

// Resumed implements peer.InitiatorHandler.
func (c *conn) Resumed(own, peer netip.Addr) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.current() || r.state != ready {
		return
	}
	c.resumed = time.Now()
	for _, l := range cut(r.links, own, peer) {
		l.Stalled()
		r.fence(l, cutOver)
	}
}

// Resumed implements peer.TargetHandler: the initiator is asked for fences. Its READs may wait for bytes of ours, which its own kernel knows nothing of.
func (s *Targets) Resumed(in *peer.In, own, peer netip.Addr) {
	t := s.Of(in)
	if t == nil || !s.Life.Enter() {
		return
	}
	defer s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen {
		return
	}
	for _, l := range cut(t.links, own, peer) {
		in.WantFence(uint8(l.Num), l.Epoch)
	}
}

// overdue asks for what the peer owes, and did not send for a while. owed: look again soon. far: a link to the peer can be cut. It is for the engine's sweeper,
// and waits for no lock of the session.
func (r *Initiator) overdue() (owed, far bool) {
	if !r.mu.TryRLock() {
		return false, true
	}
	defer r.mu.RUnlock()
	if r.state != ready {
		return false, false
	}
	now, unanswered, healthy, begin := time.Now(), false, false, false
	for _, l := range r.links {
		far = far || !l.Shared()
		stalls, begins := l.meter.stall(now)
		switch {
		case !l.Up || l.Shared():
		case l.Phase == Fencing:
			owed = true
		case l.Phase != Working:
		case stalls && l.Count().InFlight > 0:
			owed = true
			unanswered = l.unanswered(true) || unanswered
		default:
			begin = begin || begins
			healthy = true // rail_timeout decides about the others
		}
	}
	if owed {
		r.conn.out.Overdue(unanswered && !healthy)
	}
	return owed || begin, far
}

package initiator

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"gorail/backend/status"
	"gorail/backend/transfer"
)

// unname takes a peer from its name. The caller disconnects the peer. Until the departure ends the peer is among the leavers, so that no
// other session with its engine begins. nil: no peer has that name.
func (s *Sessions) unname(name, why string) (*Session, *departure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unnameLocked(name, why)
}

func (s *Sessions) unnameLocked(name, why string) (*Session, *departure) {
	r := s.byName[name]
	if r == nil {
		return nil, nil
	}
	d := &departure{why: errors.New(why), ended: make(chan struct{}), drained: make(chan struct{})}
	delete(s.byName, name)
	s.leavers[r] = d
	return r, d
}

// departed ends a departure.
func (s *Sessions) departed(r *Session, d *departure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leavers[r] == d {
		delete(s.leavers, r)
		close(d.ended)
	}
}

// disconnect lets go of a peer without waiting. Transfers in flight end in an error. The session ends behind the call: closing endpoints may take
// long when the peer is stopped. While the peer may lack notifications that were accepted it lives on, peer_timeout at most.
func (r *Session) disconnect(d *departure) {
	r.mu.Lock()
	if r.unsent() {
		r.reconnect()
	}
	d.final = r.state != connecting && r.state != ready || !r.owes()
	r.change(func() { r.leaving = d }) // the next post looks again, and finds that we are leaving
	r.retireAll()
	r.peer.EndWaiting(status.ErrBackend)
	active := r.peer.Active()
	r.mu.Unlock()
	for _, t := range active {
		t.Abort(status.ErrBackend, d.why.Error())
	}
	r.s.Life.Go(func() {
		if !d.final {
			r.deliver(d, active)
		}
		r.close(d.why, d)
		r.s.departed(r, d)
	})
}

// back gives the session that is being left with the same engine under the same name, for the application to go on with: who comes and goes
// needs no connection each time. nil: there is none. With the name's lock held.
func (s *Sessions) back(name string, raw []byte) *Session {
	s.mu.RLock()
	var r *Session
	for old := range s.leavers {
		if old.name == name && bytes.Equal(old.raw, raw) && (r == nil || old.number > r.number) {
			r = old
		}
	}
	s.mu.RUnlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.leaving
	if d == nil || d.final {
		return nil
	}
	r.reconnect()
	if r.state != connecting && r.state != ready {
		return nil
	}
	r.change(func() { r.leaving = nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leavers, r)
	s.byName[name] = r
	close(d.ended)
	return r
}

// owes says whether the peer may lack notifications that were accepted. Under mu.
func (r *Session) owes() bool {
	return r.unsent() || r.undelivered() > 0 || r.hasSess && r.sess.Sent() > 0
}

// undelivered is how many bytes of accepted notifications are known not to have been sent. Under mu.
func (r *Session) undelivered() (n uint64) {
	n = r.notifLen
	if r.hasSess {
		n += r.sess.Queued()
	}
	return n
}

// deliver waits until the transfers have drained and the peer has all notifications; or the session has ended, the application is back, or a
// bound is reached.
func (r *Session) deliver(d *departure, active []*transfer.Transfer) {
	for deadline := time.Now().Add(r.s.Options.PeerTimeout); time.Now().Before(deadline); {
		r.mu.Lock()
		back := r.leaving != d
		over := r.state == lost || r.state == closed || r.state == suspended && !r.unsent()
		if !back && r.state == ready && !d.asked && r.sess.Queued() == 0 && !slices.ContainsFunc(active, (*transfer.Transfer).Busy) {
			d.asked, d.next = true, r.sess.Sent() // numbers are given to what was posted: to all
			r.conn.out.Drain(d.next)
		}
		r.mu.Unlock()
		if back {
			return
		}
		if over {
			r.s.Log.Warn("session ended before the peer had confirmed its last notifications", "peer", r.name)
			return
		}
		wait := time.NewTimer(leaveLook)
		select {
		case <-d.drained:
			return
		case <-d.ended:
		case <-r.s.hurry:
			wait.Stop()
			r.s.Log.Warn("engine closed before a peer had confirmed its last notifications", "peer", r.name, "waited", transfer.Farewell)
			return
		case <-wait.C:
		}
		wait.Stop()
	}
	r.s.Log.Warn("a peer did not take its last notifications within peer_timeout", "peer", r.name, "peer_timeout", r.s.Options.PeerTimeout)
}

// leaveLook is how often a session that is being left is looked at.
const leaveLook = 500 * time.Microsecond

// Drained: the target has all notifications below next.
func (c *conn) Drained(next uint64) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if d := c.r.leaving; d != nil && c.current() && d.asked && d.next == next {
		d.asked, d.next = true, ^uint64(0) // once
		close(d.drained)
	}
}

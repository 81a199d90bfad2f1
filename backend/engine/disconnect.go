package engine

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"gorail/backend/peer"
	"gorail/backend/status"
)

// departure is the application's letting go of a peer, which the session outlives while the peer may lack notifications.
type departure struct {
	why   error
	ended chan struct{} // closed when the session has ended, or the application has loaded the peer again
	final bool          // there is nothing to deliver, and no way back; under remote.mu

	// Guarded by remote.mu.
	asked   bool          // whether the peer has
	next    uint64        // all notifications below this one,
	drained chan struct{} // closed when it has
}

// unname takes a peer from its name. The caller disconnects the peer. Until the departure ends the peer is among the leavers, so that no
// other session with its engine begins. nil: no peer has that name.
func (e *Engine) unname(name, why string) (*remote, *departure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unnameLocked(name, why)
}

func (e *Engine) unnameLocked(name, why string) (*remote, *departure) {
	r := e.remotes[name]
	if r == nil {
		return nil, nil
	}
	d := &departure{why: errors.New(why), ended: make(chan struct{}), drained: make(chan struct{})}
	delete(e.remotes, name)
	e.leavers[r] = d
	return r, d
}

// departed ends a departure.
func (e *Engine) departed(r *remote, d *departure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leavers[r] == d {
		delete(e.leavers, r)
		close(d.ended)
	}
}

// disconnect lets go of a peer without waiting. Transfers in flight end in an error. The session ends behind the call: closing endpoints may take
// long when the peer is stopped. While the peer may lack notifications that were accepted it lives on, peer_timeout at most.
func (r *remote) disconnect(d *departure) {
	r.mu.Lock()
	if r.unsent() {
		r.reconnect()
	}
	d.final = r.state != connecting && r.state != ready || !r.owes()
	r.change() // the next post looks again, and finds that we are leaving
	r.leaving = d
	r.retireAll()
	waiting := r.waiting
	r.waiting = nil
	for _, t := range waiting {
		r.e.xfers.Rest(t.rec)
		t.x.Settle(int32(status.ErrBackend))
	}
	active := r.e.activeOf(r)
	r.mu.Unlock()
	for _, t := range active {
		t.abort(status.ErrBackend, d.why.Error())
	}
	r.e.late.Go(func() {
		if !d.final {
			r.deliver(d, active)
		}
		r.close(d.why, d)
		r.e.departed(r, d)
	})
}

// back gives the session that is being left with the same engine under the same name, for the application to go on with: who comes and goes
// needs no connection each time. nil: there is none. With the name's lock held.
func (e *Engine) back(name string, raw []byte) *remote {
	e.mu.RLock()
	var r *remote
	for old := range e.leavers {
		if old.name == name && bytes.Equal(old.raw, raw) && (r == nil || old.number > r.number) {
			r = old
		}
	}
	e.mu.RUnlock()
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
	r.change()
	r.leaving = nil
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.leavers, r)
	e.remotes[name] = r
	close(d.ended)
	return r
}

// owes says whether the peer may lack notifications that were accepted. Under mu.
func (r *remote) owes() bool {
	return r.unsent() || r.undelivered() > 0 || r.hasSess && r.sess.Sent() > 0
}

// undelivered is how many bytes of accepted notifications are known not to have been sent. Under mu.
func (r *remote) undelivered() (n uint64) {
	n = r.notifLen
	if r.hasSess {
		n += r.sess.Queued()
	}
	return n
}

// deliver waits until the transfers have drained and the peer has all notifications; or the session has ended, the application is back, or a
// bound is reached.
func (r *remote) deliver(d *departure, active []*transfer) {
	for deadline := time.Now().Add(r.e.opt.PeerTimeout); time.Now().Before(deadline); {
		r.mu.Lock()
		back := r.leaving != d
		over := r.state == lost || r.state == closed || r.state == suspended && !r.unsent()
		if !back && r.state == ready && !d.asked && r.sess.Queued() == 0 && !slices.ContainsFunc(active, (*transfer).busy) {
			d.asked, d.next = true, r.sess.Sent() // numbers are given to what was posted: to all
			r.out.Drain(d.next)
		}
		r.mu.Unlock()
		if back {
			return
		}
		if over {
			r.e.log.Warn("session ended before the peer had confirmed its last notifications", "peer", r.name)
			return
		}
		wait := time.NewTimer(leaveLook)
		select {
		case <-d.drained:
			return
		case <-d.ended:
		case <-r.e.hurry:
			wait.Stop()
			r.e.log.Warn("engine closed before a peer had confirmed its last notifications", "peer", r.name, "waited", farewellTime)
			return
		case <-wait.C:
		}
		wait.Stop()
	}
	r.e.log.Warn("a peer did not take its last notifications within peer_timeout", "peer", r.name, "peer_timeout", r.e.opt.PeerTimeout)
}

// leaveLook is how often a session that is being left is looked at.
const leaveLook = 500 * time.Microsecond

// Drained: the target has all notifications below next.
func (h initiatorHandler) Drained(next uint64) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if d := h.r.leaving; d != nil && h.current() && d.asked && d.next == next {
		d.asked, d.next = true, ^uint64(0) // once
		close(d.drained)
	}
}

// olderThan gives the departure of a session with the engine that r is for, made before r; nil: there is none.
func (e *Engine) olderThan(r *remote) *departure {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for old, d := range e.leavers {
		if old.blob.Engine == r.blob.Engine && old.number < r.number {
			return d
		}
	}
	return nil
}

// Drain answers as soon as we have all notifications below next. It asks again and again for that: C takes notifications in without a word.
func (h targetHandler) Drain(in *peer.In, next uint64) {
	if !h.e.enter() {
		return
	}
	defer h.e.leave()
	t := h.e.target(in)
	if t == nil {
		return
	}
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	t.drainTo = next
	if t.draining {
		return // who waits already answers the last question
	}
	t.draining = true
	h.e.late.Go(func() {
		for !t.closing.Load() {
			if n, has := t.drained(); has {
				t.in.Drained(n)
				return
			}
			time.Sleep(leaveLook)
		}
	})
}

// drained says whether all notifications that the initiator asks for are ready for the application; then nobody waits any more.
func (t *target) drained() (next uint64, has bool) {
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	if t.closing.Load() || t.nextLocked() < t.drainTo {
		return 0, false
	}
	t.draining = false
	return t.drainTo, true
}

// nextLocked is the first notification that is not ready for the application. Under asmMu, with the session there.
func (t *target) nextLocked() uint64 {
	n, handed := t.sess.NextSeq()
	if handed == t.handled { // else C's number may be all that is known
		n = max(n, t.asm.Next())
	}
	return n
}

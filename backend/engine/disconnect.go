package engine

import (
	"errors"
	"time"

	"gorail/backend/peer"
	"gorail/backend/status"
)

// unname takes a peer from its name; whoever calls it disconnects the peer. Until that has ended it is among the leavers, so that no
// other session with its engine begins. nil: there is none of that name.
func (e *Engine) unname(name string) *remote {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unnameLocked(name)
}

func (e *Engine) unnameLocked(name string) *remote {
	r := e.remotes[name]
	if r != nil {
		delete(e.remotes, name)
		e.leavers[r] = struct{}{}
	}
	return r
}

// disconnect lets go of a peer without waiting. Transfers in flight end in an error. While the peer may lack notifications that were
// accepted, the session lives on behind the call, peer_timeout at most.
func (r *remote) disconnect(why string) {
	err := errors.New(why)
	r.mu.Lock()
	if r.state != connecting && r.state != ready || r.leaving != nil || !r.owes() {
		r.mu.Unlock()
		r.close(err)
		return
	}
	r.change() // whoever posts looks again, and finds that we are leaving
	r.leaving = err
	r.retireAll()
	waiting := r.waiting
	r.waiting = nil
	for _, t := range waiting {
		t.queued = false
		t.x.Settle(int32(status.ErrBackend))
	}
	active := r.e.activeOf(r)
	r.mu.Unlock()
	for _, t := range active {
		t.abort(status.ErrBackend, why)
	}
	r.e.late.Go(func() {
		r.deliver(active)
		r.close(err)
	})
}

// owes says whether the peer may lack notifications that were accepted. Under mu.
func (r *remote) owes() bool { return r.undelivered() > 0 || r.hasSess && r.sess.Sent() > 0 }

// undelivered is how many bytes of accepted notifications are known not to have been sent. Under mu.
func (r *remote) undelivered() (n uint64) {
	n = r.notifLen
	if r.hasSess {
		n += r.sess.Queued()
	}
	return n
}

// deliver waits until the transfers have drained and the peer has all notifications; or the session has ended, or a bound is reached.
func (r *remote) deliver(active []*transfer) {
	for deadline := time.Now().Add(r.e.opt.PeerTimeout); time.Now().Before(deadline); {
		r.mu.Lock()
		over := r.state != connecting && r.state != ready
		sent := r.state == ready && r.sess.Queued() == 0 && drainedAll(active)
		if sent && !r.asked.draining {
			r.asked.draining = true
			r.out.Drain(r.sess.Sent()) // numbers are given to what was posted: to all
		}
		a := r.asked
		r.mu.Unlock()
		if over {
			r.e.log.Warn("session ended before the peer had confirmed its last notifications", "peer", r.name)
			return
		}
		wait := time.NewTimer(leaveLook)
		select {
		case <-a.drained:
			return
		case <-a.over:
		case <-r.e.hurry:
			wait.Stop()
			return
		case <-wait.C:
		}
		wait.Stop()
	}
	r.e.log.Warn("a peer did not take its last notifications within peer_timeout", "peer", r.name, "peer_timeout", r.e.opt.PeerTimeout)
}

// leaveLook is how often a session that is being left is looked at.
const leaveLook = 500 * time.Microsecond

func drainedAll(list []*transfer) bool {
	for _, t := range list {
		if t.busy() {
			return false
		}
	}
	return true
}

// Drained: the target has all notifications.
func (h initiatorHandler) Drained(uint64) {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.asked.draining && !h.asked.done {
		h.asked.done = true
		close(h.asked.drained)
	}
}

// olderThan gives a session that is being left, with the engine that r is for and made before r; nil: there is none.
func (e *Engine) olderThan(r *remote) *remote {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for old := range e.leavers {
		if old.blob.Engine == r.blob.Engine && old.number < r.number {
			return old
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
	h.e.late.Go(func() {
		for !t.closing.Load() {
			if t.has(next) {
				t.in.Drained(next)
				return
			}
			time.Sleep(leaveLook)
		}
	})
}

// has says whether all notifications below next are ready for the application.
func (t *target) has(next uint64) bool {
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	if t.closing.Load() {
		return false
	}
	n, handed := t.sess.NextSeq()
	return n >= next || handed == t.handled && max(n, t.asm.Next()) >= next
}

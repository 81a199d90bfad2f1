package transfer

import (
	"slices"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/region"
)

// A destroyed agent first deregisters all memory, then says goodbye. A NIXL agent forgets a peer only on
// NIXL_ERR_REMOTE_DISCONNECT. If the peer has revoked memory of a failed transfer, its error therefore waits for that goodbye.
const (
	// Farewell is how long an ending engine waits for peers to confirm its last notifications, before its goodbye. A peer that
	// answers at all answers within a round trip.
	Farewell    = 500 * time.Millisecond
	goodbyeSoon = Farewell + 100*time.Millisecond // after the last such error
	goodbyeLate = 2 * time.Second                 // after the first one
)

// TakeBack ends a transfer after the peer has revoked some of its memory. A fully posted transfer is left to complete: the peer
// waits for it, up to its cancel_timeout. Any other transfer is aborted. One that has started over other registrations meanwhile goes on.
func (t *Transfer) TakeBack(uses func(*Transfer) bool) {
	why := errcode.RemoteGone.Errorf("the peer deregistered its memory")
	if run := t.takeBack(uses, why); run != nil {
		run.Cancel(why) // this run: EndRun may have started another one over other registrations
	}
}

// takeBack is TakeBack, but for the end of a staged run, which it returns.
func (t *Transfer) takeBack(uses func(*Transfer) bool, why error) *Run {
	t.mu.Lock()
	defer t.mu.Unlock()
	run := t.run.Load()
	if run == nil && !t.x.DropCachedPost() {
		return nil // FinishRevokes waits for it
	}
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.freed() || !t.x.Running() || !uses(t) || run == nil && (!t.linksOfReadySession() || t.rec.State() == Queued) {
		return nil // a queued one waits for keys
	}
	if t.revoked.IsZero() {
		t.revoked = time.Now()
	}
	if run != nil {
		return run
	}
	t.tab.Core.AbortUnposted(t.x, int32(errcode.ErrBackend))
	t.x.Want() // the answer to the REVOKE waits for this transfer's end
	if err, _ := t.x.Err(); err != 0 && t.reason == nil {
		t.reason, t.taken = why, true
	}
	return nil
}

// Renew goes on with a transfer after the peer has found that other memory is mapped at addresses of it, or none. What is posted
// completes. The rest starts again over bounce buffers: the peer copies by addresses.
func (t *Transfer) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.DropCachedPost()
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.freed() || !t.x.Running() || !t.linksOfReadySession() || t.run.Load() != nil || t.rec.State() == Queued {
		return
	}
	t.restart = renewed
	t.tab.Core.AbortUnposted(t.x, int32(errcode.ErrNotSupported))
	t.x.Want() // the answer to the REVOKE waits for this transfer's end
}

// Staged reports that the transfer goes over bounce buffers now. It needs no keys of the memory itself.
func (t *Transfer) Staged() bool { return t.run.Load() != nil }

// deferError defers an error if the peer has revoked memory of the transfer and may be about to leave. Otherwise deferError returns the
// final status. logged: the error is in the log. Under t.mu.
func (t *Transfer) deferError(code int32, logged bool) (int32, bool) {
	if t.inner != nil || code != int32(errcode.ErrBackend) {
		return code, false
	}
	p := t.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !slices.ContainsFunc(t.remotes, goneNow):
		return code, false
	case p.view.State == Ready:
		p.deferError(deferredError{t, code, logged})
		return code, true
	case p.view.State == Lost:
		return int32(p.view.Code.Status), false
	}
	return code, false
}

// goneNow reports that a region has no keys, and that its agent may be being destroyed. Under Peer.mu.
func goneNow(g *region.Region) bool {
	return !g.Keyed && !g.Closed.Load() && !(g.Unknown && g.Stays)
}

// Stays ends the wait of deferred errors: the peer's agent is not being destroyed.
func (p *Peer) Stays() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.deferred) > 0 {
		p.until = time.Time{}
		p.tab.Life.After(0, p.finalizeDeferred) // outside the session's lock
	}
}

// deferError adds an error to the deferred ones. Under mu.
func (p *Peer) deferError(d deferredError) {
	now := time.Now()
	if len(p.deferred) == 0 {
		p.since = now
		p.tab.Life.After(goodbyeSoon, p.finalizeDeferred)
	}
	p.deferred = append(p.deferred, d)
	p.until = now.Add(goodbyeSoon)
	if last := p.since.Add(goodbyeLate); p.until.After(last) {
		p.until = last
	}
}

// FinalizeDeferred schedules finalizeDeferred at once, because the session has ended.
func (p *Peer) FinalizeDeferred() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if len(p.deferred) > 0 {
		p.tab.Life.After(0, p.finalizeDeferred) // outside the session's lock
	}
}

// finalizeDeferred gives transfers with a deferred error their status: the peer is still there, or the session has ended.
func (p *Peer) finalizeDeferred() {
	p.mu.Lock()
	if left := time.Until(p.until); p.view.State == Ready && left > 0 {
		p.tab.Life.After(left, p.finalizeDeferred)
		p.mu.Unlock()
		return
	}
	list := p.deferred
	p.deferred = nil
	gone, code := p.view.State == Lost, p.view.Code
	p.mu.Unlock()
	for _, d := range list {
		if gone {
			d.code = int32(code.Status)
		}
		d.t.mu.Lock()
		if !d.t.freed() && d.t.x.NeedsFinalize() {
			if d.logged {
				d.t.x.Finalize(d.code)
			} else {
				d.t.finish(d.code)
			}
		}
		d.t.mu.Unlock()
	}
}

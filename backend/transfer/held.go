package transfer

import (
	"slices"
	"time"

	"gorail/backend/region"
	"gorail/backend/status"
)

// An agent that is destroyed deregisters all memory first and says goodbye then. NIXL's agent forgets a peer by NIXL_ERR_REMOTE_DISCONNECT
// alone, so the error of a transfer whose memory the peer has taken back waits for that goodbye.
const (
	// Farewell is how long an engine that ends waits for peers to confirm its last notifications, before its goodbye. A peer that answers at all
	// does so in a round trip.
	Farewell    = 500 * time.Millisecond
	goodbyeSoon = Farewell + 100*time.Millisecond // after the last of such errors
	goodbyeLate = 2 * time.Second                 // after the first
)

// TakeBack is Abort for a transfer of which the peer has taken memory back: posted whole it is left to complete. The peer waits for it, up to its
// cancel_timeout.
func (t *Transfer) TakeBack() {
	const why = "the peer deregistered its memory"
	if t.staging() != nil {
		t.Abort(status.ErrBackend, why)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.DropCachedPost()
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.freed() || !t.x.Running() || !t.attached() {
		return
	}
	if t.taken.IsZero() {
		t.taken = time.Now()
	}
	t.tab.Core.AbortUnposted(t.x, int32(status.ErrBackend))
	t.x.Want() // the answer waits for its end
	if err, _ := t.x.Err(); err != 0 && t.reason == "" {
		t.reason = why
	}
}

// hold keeps an error back when the peer has taken memory of the transfer back and may be about to leave; else it gives the status. Under t.mu.
func (t *Transfer) hold(code int32, told bool) (int32, bool) {
	if t.inner != nil || code != int32(status.ErrBackend) {
		return code, false
	}
	p := t.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return !g.Keyed && !g.Closed.Load() }):
		return code, false
	case p.view.State == Ready:
		p.hold(held{t, code, told})
		return code, true
	case p.view.State == Lost:
		return int32(p.view.Code), false
	}
	return code, false
}

// hold: under mu.
func (p *Peer) hold(h held) {
	now := time.Now()
	if len(p.held) == 0 {
		p.since = now
		p.tab.Life.After(goodbyeSoon, p.finalizeHeld)
	}
	p.held = append(p.held, h)
	p.until = now.Add(goodbyeSoon)
	if last := p.since.Add(goodbyeLate); p.until.After(last) {
		p.until = last
	}
}

// FinalizeHeld gives transfers whose error waits their status soon: the session has ended.
func (p *Peer) FinalizeHeld() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if len(p.held) > 0 {
		p.tab.Life.After(0, p.finalizeHeld) // not under the session's lock
	}
}

// finalizeHeld gives held transfers their status: the peer lives on, or the session has ended.
func (p *Peer) finalizeHeld() {
	p.mu.Lock()
	if left := time.Until(p.until); p.view.State == Ready && left > 0 {
		p.tab.Life.After(left, p.finalizeHeld)
		p.mu.Unlock()
		return
	}
	list := p.held
	p.held = nil
	gone, code := p.view.State == Lost, int32(p.view.Code)
	p.mu.Unlock()
	for _, h := range list {
		if gone {
			h.code = code
		}
		h.t.mu.Lock()
		if !h.t.freed() && h.t.x.NeedsFinalize() {
			if h.told {
				h.t.x.Finalize(h.code)
			} else {
				h.t.finish(h.code)
			}
		}
		h.t.mu.Unlock()
	}
}

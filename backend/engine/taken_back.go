package engine

import (
	"slices"
	"time"

	"gorail/backend/region"
	"gorail/backend/status"
)

// An agent that is destroyed deregisters all memory first and says goodbye then. NIXL's agent forgets a peer by NIXL_ERR_REMOTE_DISCONNECT
// alone, so the error of a transfer whose memory the peer has taken back waits for that goodbye.
const (
	goodbyeSoon = farewellTime + 100*time.Millisecond // after the last of such errors
	goodbyeLate = 2 * time.Second                     // after the first
)

// held is a transfer whose error waits.
type held struct {
	t    *transfer
	code int32
	told bool // it is in the log
}

// takeBack is abort for a transfer of which the peer has taken memory back: posted whole it is left to complete. The peer waits for it, up to its
// cancel_timeout.
func (t *transfer) takeBack() {
	const why = "the peer deregistered its memory"
	if t.run.Load() != nil {
		t.abort(status.ErrBackend, why)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.TakeTicket()
	r := t.remote
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t.freed() || !t.x.Running() || !t.attached(r) {
		return
	}
	if t.taken.IsZero() {
		t.taken = time.Now()
	}
	t.e.core.AbortUnposted(t.x, int32(status.ErrBackend))
	t.x.Want() // the answer waits for its end
	if err, _ := t.x.Err(); err != 0 && t.reason == "" {
		t.reason = why
	}
}

// hold keeps an error back when the peer has taken memory of the transfer back and may be about to leave; else it gives the status. Under t.mu.
func (t *transfer) hold(code int32, told bool) (int32, bool) {
	if t.inner != nil || code != int32(status.ErrBackend) {
		return code, false
	}
	r := t.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return !g.Keyed && !g.Closed.Load() }):
		return code, false
	case r.state == ready:
		r.hold(held{t, code, told})
		return code, true
	case r.state == lost:
		return int32(r.code), false
	}
	return code, false
}

// hold: under mu.
func (r *remote) hold(h held) {
	now := time.Now()
	if len(r.held) == 0 {
		r.heldFrom = now
		r.e.after(goodbyeSoon, r.settleHeld)
	}
	r.held = append(r.held, h)
	r.heldTo = now.Add(goodbyeSoon)
	if last := r.heldFrom.Add(goodbyeLate); r.heldTo.After(last) {
		r.heldTo = last
	}
}

// settleHeld gives held transfers their status: the peer lives on, or the session has ended.
func (r *remote) settleHeld() {
	r.mu.Lock()
	if left := time.Until(r.heldTo); r.state == ready && left > 0 {
		r.e.after(left, r.settleHeld)
		r.mu.Unlock()
		return
	}
	list := r.held
	r.held = nil
	gone, code := r.state == lost, int32(r.code)
	r.mu.Unlock()
	for _, h := range list {
		if gone {
			h.code = code
		}
		h.t.mu.Lock()
		if !h.t.freed() && h.t.x.Unsettled() {
			if h.told {
				h.t.x.Settle(h.code)
			} else {
				h.t.finish(h.code)
			}
		}
		h.t.mu.Unlock()
	}
}

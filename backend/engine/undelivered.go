package engine

import (
	"cmp"
	"slices"
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// Notifications that were accepted outlive their session when that is lost and the peer is not dead: the next one sends them. Of those that
// were posted the target says whether it has them (Hello.After, Welcome.NextSeq), so that each arrives once.

// redialNotifs is how often a peer is dialed for them, until peer_timeout.
const redialNotifs = 500 * time.Millisecond

// keepNotifs takes what the links have still to deliver, before they are dropped. Under mu.
func (r *remote) keepNotifs() {
	if !r.hasSess {
		return
	}
	var kept []fastpath.Taken
	for _, l := range r.links { // all first: what is taken from one makes room for others to number more
		_ = r.e.quiesce(l) // in the log
	}
	for _, l := range r.links {
		for l.up {
			m, more := l.l.TakeNotif()
			if !more {
				break
			}
			kept = append(kept, m)
		}
	}
	slices.SortStableFunc(kept, func(a, b fastpath.Taken) int {
		if a.Numbered != b.Numbered {
			if a.Numbered {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Seq, b.Seq) // 0 without a number
	})
	if len(kept) > 0 {
		r.after = r.out.Session()
	}
	for _, m := range kept {
		r.notifLen += notifCost(m.Body)
	}
	r.notifs = append(kept, r.notifs...)
}

// redialLater connects again for the notifications that are kept, or gives them up. Under mu, with the session lost.
func (r *remote) redialLater() {
	if len(r.notifs) == 0 {
		return
	}
	now := time.Now()
	if r.keptUntil.IsZero() {
		r.keptUntil = now.Add(r.e.opt.PeerTimeout)
	}
	if now.After(r.keptUntil) || r.e.closed.Load() {
		r.dropNotifs()
		return
	}
	r.e.after(redialNotifs, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reconnect()
	})
}

// dropNotifs gives up what waits for a session. Under mu.
func (r *remote) dropNotifs() {
	if len(r.notifs) > 0 {
		r.e.log.Warn("notifications lost", "peer", r.name, "count", len(r.notifs), "err", r.err)
	}
	r.clearNotifs()
}

// clearNotifs empties the queue for the next session. Under mu.
func (r *remote) clearNotifs() {
	r.notifs, r.notifLen, r.after, r.keptUntil = nil, 0, 0, time.Time{}
}

// flushNotifs sends what was accepted before the session was ready; of a session before, what the target has not taken in. Under mu.
func (r *remote) flushNotifs(w wire.Welcome) {
	for _, m := range r.notifs {
		if m.Numbered && m.Seq < w.NextSeq {
			continue
		}
		if err := r.send(m.Body); err != nil {
			r.e.log.Error("notification lost", "peer", r.name, "err", err)
		}
	}
	r.clearNotifs()
}

// taken are the notifications that initiators' sessions which have ended had delivered, the latest session of each engine.
type taken struct {
	session, next uint64
}

// mostTaken bounds them.
const mostTaken = 4096

// noteTaken keeps how far a session got that ends.
func (e *Engine) noteTaken(in *peer.In, next uint64) {
	if next == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	before, known := e.taken[in.Engine()]
	if known && before.session > in.Session() {
		return // where endpoints are shared an older session may end later
	}
	if !known && len(e.taken) >= mostTaken {
		for id := range e.taken {
			delete(e.taken, id) // any one: it matters only to who connects again within its peer_timeout
			break
		}
	}
	e.taken[in.Engine()] = taken{in.Session(), next}
}

// takenOf says how far a session got; 0: nothing is known of it.
func (e *Engine) takenOf(id wire.EngineID, session uint64) uint64 {
	e.mu.RLock()
	ended := e.taken[id]
	var live *target // where endpoints are shared it may still be there
	for _, t := range e.byEngine[id] {
		if t.in.Session() == session {
			live = t
		}
	}
	e.mu.RUnlock()
	switch {
	case ended.session == session:
		return ended.next
	case live != nil:
		return live.taken()
	}
	return 0
}

// taken says how far a session got that may be there or be ending.
func (t *target) taken() uint64 {
	t.mu.Lock()
	if t.gone {
		t.mu.Unlock()
		t.e.mu.RLock()
		defer t.e.mu.RUnlock()
		return t.e.taken[t.in.Engine()].next
	}
	defer t.mu.Unlock()
	p, err := t.proof()
	if err != nil {
		t.asmMu.Lock()
		defer t.asmMu.Unlock()
		return t.nextLocked()
	}
	return p.Next
}

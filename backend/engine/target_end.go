package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gorail/backend/notify"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// endOlder ends what an engine has left open of earlier sessions: a peer that has given us up, while we were stopped,
// say, must find its old endpoint closed before it gets a new one. Where peers share an endpoint closing is no fence, and the peer's
// operations still under way would fail without our knowing its address: the session takes nothing in any more, and its links stay until the
// peer says goodbye.
// A session that is older itself comes late: its initiator has given it up. One engine has few sessions at a time.
func (e *Engine) endOlder(in *peer.In) error {
	e.mu.RLock()
	old := slices.Clone(e.byEngine[in.Engine()])
	e.mu.RUnlock()
	switch {
	case slices.ContainsFunc(old, func(t *target) bool { return t.in.Session() > in.Session() }):
		return &peer.RejectError{Code: wire.CodeSession, Text: "there is a newer session of this engine"}
	case len(old) >= mostOlder:
		return &peer.RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d sessions of this engine have not ended yet", len(old))}
	}
	for _, t := range old {
		end := func() {
			t.leave(false)
			t.in.Close("replaced by a newer session")
		}
		t.mu.Lock()
		shared := t.shared()
		t.freeze()
		t.mu.Unlock()
		if shared {
			e.after(goodbyeWait+time.Second, end)
		} else {
			end()
		}
	}
	return nil
}

// shared says that an endpoint of the session serves other peers as well. Under mu.
func (t *target) shared() bool {
	return slices.ContainsFunc(t.links, func(l *link) bool { return l.shared() && l.up })
}

// freeze ends access through endpoints of the session's own, and the taking in of notifications: how far they got is exact then, and is kept for the
// engine's next session. Under mu.
func (t *target) freeze() {
	if t.frozen {
		return
	}
	t.frozen = true
	t.e.ending <- struct{}{}
	for _, l := range t.links {
		_ = t.e.quiesce(l) // in the log
		if l.shared() && l.up {
			l.l.CatchUp() // what the peer knows to have arrived
		}
	}
	<-t.e.ending
	t.sess.End()
	err := t.inOrder(func() {})
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	next, held := max(t.nextLocked(), t.asm.Next()), t.asm // the core's is stale while Go puts messages in order
	held.Advance(next)
	held.DropPartial() // the peer has these
	t.asm = notify.New(notify.Limits{})
	t.asm.Advance(next)
	if err == nil && t.refused {
		err = errors.New("the peer sent a bad notification")
	}
	if err != nil {
		t.e.warnOf(t.in, "notifications of a session that ends were dropped", "count", held.Pending(), "err", err)
		held, t.skip = t.asm, map[uint64]bool{}
	}
	t.refused = true
	t.holdPending(0) // noteTaken counts what is held
	t.e.noteTaken(t.in.Engine(), &taken{first: t.first, last: t.in.Session(), asm: held, skip: t.skip})
}

// Bounds of what is left of sessions over shared endpoints that were lost: the peer goes on sending until it knows, which takes its peer_timeout.
const (
	leastLinger   = time.Minute // or two peer_timeouts of ours
	mostLingering = 256         // at 70 KiB of receives each
)

// lingers says that a session that has ended takes notifications in until the peer begins another. Under mu.
func (t *target) lingers() bool {
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	return t.shared() && !t.frozen && !t.refused && !t.e.closed.Load()
}

// limitLingering ends the session that was lost first, when too many take notifications in.
func (e *Engine) limitLingering() {
	e.mu.RLock()
	all := slices.Collect(maps.Values(e.targets))
	e.mu.RUnlock()
	var oldest *target
	var since time.Time
	n := 0
	for _, t := range all {
		t.mu.Lock()
		lost, over := t.lost, t.over
		t.mu.Unlock()
		if lost.IsZero() || over {
			continue
		}
		if n++; oldest == nil || lost.Before(since) {
			oldest, since = t, lost
		}
	}
	if n > mostLingering {
		oldest.leave(false)
	}
}

// close ends the session on our side. Safe to call again.
func (t *target) close() { t.leave(true) }

// leave ends the session on our side. Without linger nothing of it is left on return. Safe to call again.
func (t *target) leave(linger bool) {
	e := t.e
	t.closing.Store(true) // before the sweep over holders: no key is given out any more
	e.regions.DropHolder(t)
	if !t.end(linger) {
		t.staged.await(e.opt.CancelTimeout)
	} else {
		t.staged.close(e.opt.CancelTimeout)
	}
	t.mu.Lock()
	over := t.over
	t.mu.Unlock()
	if over {
		e.mu.Lock()
		delete(e.targets, t.in) // last: whoever closes the engine finds us until we are done
		id := t.in.Engine()
		if e.byEngine[id] = slices.DeleteFunc(e.byEngine[id], func(o *target) bool { return o == t }); len(e.byEngine[id]) == 0 {
			delete(e.byEngine, id)
		}
		e.mu.Unlock()
	}
}

// end is leave but for copies and rings; false: the session had ended before.
func (t *target) end(linger bool) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = !t.gone
	t.gone = true
	for id, done := range t.revokes {
		delete(t.revokes, id)
		close(done)
	}
	if linger = linger && t.lingers(); linger {
		for _, l := range t.links {
			if !l.shared() {
				_ = t.e.quiesce(l) // in the log
			}
		}
		if first {
			t.lost = time.Now()
			t.e.after(max(leastLinger, 2*t.e.opt.PeerTimeout), func() { t.leave(false) })
			t.e.after(0, t.e.limitLingering) // not under mu
		}
	}
	if linger || t.over {
		return first
	}
	t.over = true
	t.freeze()
	t.e.mu.Lock()
	delete(t.e.byID, t.id)
	t.e.mu.Unlock()
	t.e.past.add(t.view(), "closed")
	t.asmMu.Lock() // no delivery to a session that is being freed
	defer t.asmMu.Unlock()
	t.e.freeing <- struct{}{}
	t.drop()
	<-t.e.freeing
	return first
}

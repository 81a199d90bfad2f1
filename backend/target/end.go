package target

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/link"
	"gorail/backend/notify"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// endOlder ends what an engine has left open of earlier sessions: a peer that has given us up, while we were stopped,
// say, must find its old endpoint closed before it gets a new one. Where peers share an endpoint closing is no fence, and the peer's
// operations still under way would fail without our knowing its address: the session takes nothing in any more, and its links stay until the
// peer says goodbye.
// A session that is older itself comes late: its initiator has given it up. One engine has few sessions at a time.
func (s *Sessions) endOlder(in *peer.In) error {
	s.mu.RLock()
	old := slices.Clone(s.byEngine[in.Engine()])
	s.mu.RUnlock()
	switch {
	case slices.ContainsFunc(old, func(t *Session) bool { return t.in.Session() > in.Session() }):
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
			s.Life.After(link.GoodbyeWait+time.Second, end)
		} else {
			end()
		}
	}
	return nil
}

// shared says that an endpoint of the session serves other peers as well. Under mu.
func (t *Session) shared() bool {
	return slices.ContainsFunc(t.links, func(l *link.Link) bool { return l.Shared() && l.Up })
}

// freeze ends access through endpoints of the session's own, and the taking in of notifications: how far they got is exact then, and is kept for the
// engine's next session. Under mu.
func (t *Session) freeze() {
	if t.frozen {
		return
	}
	t.frozen = true
	t.s.ending <- struct{}{}
	for _, l := range t.links {
		_ = t.s.Links.Quiesce(l) // in the log
		if l.Shared() && l.Up {
			l.Core.CatchUp() // what the peer knows to have arrived
		}
	}
	<-t.s.ending
	t.sess.End()
	err := t.inOrder(func() {})
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	next, held := max(t.nextLocked(), t.order.asm.Next()), t.order.asm // the core's is stale while Go puts messages in order
	held.Advance(next)
	held.DropPartial() // the peer has these
	t.order.asm = notify.New(notify.Limits{})
	t.order.asm.Advance(next)
	if err == nil && t.order.refused {
		err = errors.New("the peer sent a bad notification")
	}
	if err != nil {
		t.s.warnOf(t.in, "notifications of a session that ends were dropped", "count", held.Pending(), "err", err)
		held, t.order.skip = t.order.asm, map[uint64]bool{}
	}
	t.order.refused = true
	t.holdPending(0) // noteTaken counts what is held
	t.s.noteTaken(t.in.Engine(), &taken{first: t.order.first, last: t.in.Session(), asm: held, skip: t.order.skip})
}

// Bounds of what is left of sessions over shared endpoints that were lost: the peer goes on sending until it knows, which takes its peer_timeout.
const (
	leastLinger   = time.Minute // or two peer_timeouts of ours
	mostLingering = 256         // at 70 KiB of receives each
)

// lingers says that a session that has ended takes notifications in until the peer begins another. Under mu.
func (t *Session) lingers() bool {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	return t.shared() && !t.frozen && !t.order.refused && !t.s.Life.Closed()
}

// limitLingering ends the session that was lost first, when too many take notifications in.
func (s *Sessions) limitLingering() {
	var oldest *Session
	var since time.Time
	n := 0
	for _, t := range s.All() {
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
func (t *Session) close() { t.leave(true) }

// leave ends the session on our side. Without linger nothing of it is left on return. Safe to call again.
func (t *Session) leave(linger bool) {
	s := t.s
	t.closing.Store(true) // before the sweep over holders: no key is given out any more
	s.Regions.DropHolder(t)
	if !t.end(linger) {
		t.staged.Await(s.Options.CancelTimeout)
	} else {
		t.staged.Close(s.Options.CancelTimeout)
	}
	t.mu.Lock()
	over := t.over
	t.mu.Unlock()
	if over {
		s.mu.Lock()
		delete(s.all, t.in) // last: whoever closes the engine finds us until we are done
		id := t.in.Engine()
		if s.byEngine[id] = slices.DeleteFunc(s.byEngine[id], func(o *Session) bool { return o == t }); len(s.byEngine[id]) == 0 {
			delete(s.byEngine, id)
		}
		s.mu.Unlock()
	}
}

// end is leave but for copies and rings; false: the session had ended before.
func (t *Session) end(linger bool) (first bool) {
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
			if !l.Shared() {
				_ = t.s.Links.Quiesce(l) // in the log
			}
		}
		if first {
			t.lost = time.Now()
			t.s.Life.After(max(leastLinger, 2*t.s.Options.PeerTimeout), func() { t.leave(false) })
			t.s.Life.After(0, t.s.limitLingering) // not under mu
		}
	}
	if linger || t.over {
		return first
	}
	t.over = true
	t.freeze()
	t.s.mu.Lock()
	delete(t.s.byID, t.id)
	t.s.mu.Unlock()
	t.s.Past.Add(t.view(), "closed")
	t.order.mu.Lock() // no delivery to a session that is being freed
	defer t.order.mu.Unlock()
	t.s.freeing <- struct{}{}
	t.drop()
	<-t.s.freeing
	return first
}

// AwaitRevoked waits for the answer until the deadline; a peer that does not answer loses its endpoint. Implements region.Holder.
func (t *Session) AwaitRevoked(done <-chan struct{}, deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
		select {
		case <-done: // both: it did answer
			return
		default:
		}
	}
	t.s.warnOf(t.in, "peer did not give a deregistered region back in time: its endpoint is closed", "cancel_timeout", t.s.Options.CancelTimeout)
	t.close()
	t.in.Close("no answer to a revocation within cancel_timeout")
}

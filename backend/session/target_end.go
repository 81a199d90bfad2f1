package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// endOlder ends the earlier sessions of an engine. A peer may have given us up, for example while we were stopped.
// Its old endpoint must be closed before it gets a new one. Closing a shared endpoint is no fence: operations of the
// peer still in flight would fail, because we would no longer know the peer's address. Such a session stops taking
// notifications in, and its links stay until the peer says goodbye. If the engine has a newer session, this Hello
// comes late: its initiator has given it up. One engine has few sessions at a time.
func (s *Targets) endOlder(in *peer.In) error {
	s.mu.RLock()
	old := slices.Clone(s.byEngine[in.Engine()])
	s.mu.RUnlock()
	switch {
	case slices.ContainsFunc(old, func(t *Target) bool { return t.in.Session() > in.Session() }):
		return &peer.RejectError{Code: wire.CodeSession, Text: "there is a newer session of this engine"}
	case len(old) >= mostOlder:
		s.Limits.Hit(limits.OlderSessions)
		return &peer.RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d sessions of this engine have not ended yet", len(old))}
	}
	for _, t := range old {
		t.mu.Lock()
		shared := t.shared()
		t.freeze()
		t.mu.Unlock()
		if shared {
			t.after(GoodbyeWait+time.Second, (*Target).replaced)
		} else {
			t.replaced()
		}
	}
	return nil
}

func (t *Target) replaced() {
	t.leave(false)
	t.in.Close("replaced by a newer session")
}

// after calls f after d, unless the session is over by then. The timer keeps no session that is over: sessions may come and
// go much faster than timers end.
func (t *Target) after(d time.Duration, f func(*Target)) {
	s, id := t.s, t.id
	s.Life.After(d, func() {
		s.mu.RLock()
		t := s.byID[id]
		s.mu.RUnlock()
		if t != nil {
			f(t)
		}
	})
}

// shared returns true if an endpoint of the session also serves other peers. Under mu.
func (t *Target) shared() bool {
	return slices.ContainsFunc(t.links, func(l *Link) bool { return l.Shared() && l.Up })
}

// freeze ends access through exclusive endpoints, and stops taking notifications in. The progress of the notifications
// is exact then. freeze saves it for the engine's next session. Under mu.
func (t *Target) freeze() {
	if t.frozen {
		return
	}
	t.frozen = true
	t.s.ending <- struct{}{}
	for _, l := range t.links {
		_ = t.s.Links.Quiesce(l) // Quiesce logs the error
		if l.Shared() && l.Up {
			l.Core.CatchUp() // take in the messages that the peer knows to have arrived
		}
	}
	<-t.s.ending
	t.sess.End()
	err := t.inOrder(func() {})
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.deliver()                                                        // the peer does not send again what is in order here
	next, held := max(t.nextLocked(), t.order.asm.Next()), t.order.asm // the core's number is stale while Go orders messages
	held.Advance(next)
	held.DropPartial() // the peer still has these messages and sends them again
	t.order.asm = NewAssembler(Limits{})
	t.order.asm.Advance(next)
	if err == nil && t.order.refused {
		err = errors.New("the peer sent a bad notification")
	}
	if err != nil {
		t.s.warnOf(t.in, "notifications dropped at the end of a session", "count", held.Pending(), "err", err)
		held, t.order.skip = t.order.asm, map[uint64]bool{}
	}
	t.order.refused = true
	t.holdPending(0) // saveProgress counts the held messages
	t.s.saveProgress(t.in.Engine(), &notifProgress{first: t.order.first, last: t.in.Session(), owner: t.in.Owner(), asm: held, skip: t.order.skip})
}

// Bounds of lost sessions over shared endpoints. The peer keeps sending until its peer_timeout.
const (
	leastLinger   = time.Minute // or two of our peer_timeouts, if that is longer
	mostLingering = 256         // each keeps 70 KiB of receive buffers
)

// lingers returns true if an ended session still takes notifications in until the peer begins another session. Under mu.
func (t *Target) lingers() bool {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	return t.shared() && !t.frozen && !t.order.refused && !t.s.Life.Ending()
}

// limitLingering ends the session that was lost first, if more than mostLingering sessions linger.
func (s *Targets) limitLingering() {
	var oldest *Target
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
		s.Limits.Hit(limits.Lingering)
		oldest.leave(false)
	}
}

// close ends the session on our side. It may be called again.
func (t *Target) close() { t.leave(true) }

// leave ends the session on our side. Without linger nothing of the session is left on return. It may be called again.
func (t *Target) leave(linger bool) {
	s := t.s
	t.holder.Closing.Store(true) // before DropHolder: KeysFor gives out no key from here on
	s.Regions.DropHolder(&t.holder)
	if !t.end(linger) {
		t.staged.AwaitClosed(s.Options.CancelTimeout)
	} else {
		t.staged.Close(s.Options.CancelTimeout)
	}
	t.mu.Lock()
	over := t.over
	t.mu.Unlock()
	if over {
		s.mu.Lock()
		if s.all[t.in] == t {
			s.names.remove(t.in)
		}
		delete(s.all, t.in) // last: Close must find the session until it has ended
		id := t.in.Engine()
		if s.byEngine[id] = slices.DeleteFunc(s.byEngine[id], func(o *Target) bool { return o == t }); len(s.byEngine[id]) == 0 {
			delete(s.byEngine, id)
		}
		s.mu.Unlock()
	}
}

// end is leave without the staging copies and bounce buffers. false: the session had ended before.
func (t *Target) end(linger bool) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = !t.gone
	t.gone = true
	t.holder.End()
	if linger = linger && t.lingers(); linger {
		for _, l := range t.links {
			if !l.Shared() {
				_ = t.s.Links.Quiesce(l) // Quiesce logs the error
			}
		}
		if first {
			t.lost = time.Now() //limit:lingering_sessions
			t.after(max(leastLinger, 2*t.s.Options.PeerTimeout), func(t *Target) { t.leave(false) })
			t.s.Life.After(0, t.s.limitLingering) // in another goroutine: it takes mu
		}
	}
	if linger || t.over {
		return first
	}
	t.over = true
	t.freeze()
	t.deliverLast() // the saved progress says that these have come
	t.s.mu.Lock()
	delete(t.s.byID, t.id)
	t.s.mu.Unlock()
	t.s.Past.Add(t.view(), "closed")
	t.order.mu.Lock() // nothing may deliver to a session that is being freed
	defer t.order.mu.Unlock()
	t.s.freeing <- struct{}{}
	t.drop()
	<-t.s.freeing
	return first
}

// A Drain polls after the first interval, then after a quarter of the time that it has waited, at most after the last
// interval: a peer may ask for what never comes.
const (
	firstLook = 500 * time.Microsecond
	lastLook  = 50 * time.Millisecond
)

// nextLook is the pause after the first waited time of a Drain.
func nextLook(waited time.Duration) time.Duration { return min(max(firstLook, waited/4), lastLook) }

// Drain answers when we have all notifications below next. It polls, because the core takes notifications in without an
// event.
func (s *Targets) Drain(in *peer.In, next uint64) {
	if !s.Life.Enter() {
		return
	}
	defer s.Life.Leave()
	t := s.Of(in)
	if t == nil {
		return
	}
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.order.drainTo = next
	if t.order.draining {
		return // the goroutine that waits answers the last Drain
	}
	t.order.draining = true
	s.Life.Go(func() { //limit:drains
		for start := time.Now(); !t.holder.Closing.Load(); {
			if n, has := t.drained(); has {
				t.in.Drained(n)
				return
			}
			select {
			case <-time.After(nextLook(time.Since(start))):
			case <-in.Done():
				return
			}
		}
	})
}

// drained returns true if all notifications that the Drain names are ready for the application, and ends the wait.
func (t *Target) drained() (next uint64, has bool) {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	if t.holder.Closing.Load() || t.nextLocked() < t.order.drainTo {
		return 0, false
	}
	t.order.draining = false
	return t.order.drainTo, true
}

// nextLocked is the number of the first notification that is not ready for the application. Under order.mu, with sess
// valid.
func (t *Target) nextLocked() uint64 {
	n, handed := t.sess.NextSeq()
	if handed == t.order.handled { // else only the core's number is reliable
		n = max(n, t.order.asm.Next())
	}
	return n
}

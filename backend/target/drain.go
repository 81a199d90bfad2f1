package target

import (
	"time"

	"gorail/backend/peer"
)

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
func (s *Sessions) Drain(in *peer.In, next uint64) {
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
		for start := time.Now(); !t.closing.Load(); {
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
func (t *Session) drained() (next uint64, has bool) {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	if t.closing.Load() || t.nextLocked() < t.order.drainTo {
		return 0, false
	}
	t.order.draining = false
	return t.order.drainTo, true
}

// nextLocked is the number of the first notification that is not ready for the application. Under order.mu, with sess
// valid.
func (t *Session) nextLocked() uint64 {
	n, handed := t.sess.NextSeq()
	if handed == t.order.handled { // else only the core's number is reliable
		n = max(n, t.order.asm.Next())
	}
	return n
}

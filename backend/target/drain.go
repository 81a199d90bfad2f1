package target

import (
	"time"

	"gorail/backend/peer"
)

// drainLook is how often it is looked whether an initiator's last notifications are there.
const drainLook = 500 * time.Microsecond

// Drain answers as soon as we have all notifications below next. It asks again and again for that: C takes notifications in without a word.
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
		return // who waits already answers the last question
	}
	t.order.draining = true
	s.Life.Go(func() {
		for !t.closing.Load() {
			if n, has := t.drained(); has {
				t.in.Drained(n)
				return
			}
			time.Sleep(drainLook)
		}
	})
}

// drained says whether all notifications that the initiator asks for are ready for the application; then nobody waits any more.
func (t *Session) drained() (next uint64, has bool) {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	if t.closing.Load() || t.nextLocked() < t.order.drainTo {
		return 0, false
	}
	t.order.draining = false
	return t.order.drainTo, true
}

// nextLocked is the first notification that is not ready for the application. Under order.mu, with the session there.
func (t *Session) nextLocked() uint64 {
	n, handed := t.sess.NextSeq()
	if handed == t.order.handled { // else C's number may be all that is known
		n = max(n, t.order.asm.Next())
	}
	return n
}

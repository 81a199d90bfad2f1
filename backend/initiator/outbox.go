package initiator

import (
	"cmp"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/wire"
)

// Notifications that were accepted outlive their session when that is lost and the peer is not dead: the next one sends them. Its numbers go on
// from those of the session before (Hello.After), of which the target says what it has (Welcome.NextSeq, Have): it holds messages behind gaps,
// which we have not any more. So gaps are filled first, with what was kept under these numbers, or a word to go on without.

// redialNotifs is how often a peer is dialed for them, until peer_timeout.
const redialNotifs = 500 * time.Millisecond

// keepNotifs takes what the links have still to deliver, before they are dropped. Under mu.
func (r *Session) keepNotifs() {
	if !r.hasSess {
		return
	}
	var kept []core.Taken
	for _, l := range r.links { // all first: what is taken from one makes room for others to number more
		_ = r.s.Links.Quiesce(l) // in the log
	}
	left, lowest := 0, r.sess.Sent()
	for _, l := range r.links {
		for l.Up {
			m, more := l.Core.TakeNotif()
			if !more {
				break
			}
			kept = append(kept, m)
		}
		if l.Up {
			if n, first := l.Core.Numbered(); n > 0 {
				left, lowest = left+n, min(lowest, first)
			}
		}
	}
	slices.SortStableFunc(kept, func(a, b core.Taken) int {
		if a.Numbered != b.Numbered {
			if a.Numbered {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Seq, b.Seq) // 0 without a number
	})
	r.after = r.conn.out.Session()
	r.gap = r.gap || r.sess.Sent()-lowest > uint64(left)
	for _, m := range kept {
		r.notifLen += notifCost(m.Body)
	}
	r.notifs = append(kept, r.notifs...)
}

// unsent says that the next session has something to do for notifications that were accepted. Under mu.
func (r *Session) unsent() bool { return len(r.notifs) > 0 || r.gap }

// dropNotifs gives up what waits for a session. Under mu.
func (r *Session) dropNotifs() {
	if len(r.notifs) > 0 {
		r.s.Log.Warn("notifications lost", "peer", r.name, "count", len(r.notifs), "err", r.err)
	}
	r.clearNotifs()
}

// clearNotifs empties the queue for the next session. Under mu.
func (r *Session) clearNotifs() {
	r.notifs, r.notifLen, r.gap, r.keptUntil = nil, 0, false, time.Time{}
}

// firstNumber is what the session's numbers begin with: all that the target has are below.
func firstNumber(w wire.Welcome) uint64 {
	if n := len(w.Have); n > 0 {
		return w.NextSeq + uint64(w.Have[n-1]) + 1
	}
	return w.NextSeq
}

// flushNotifs sends what was accepted before the session was ready: first what the target lacks of the numbers before this session's. Under mu.
func (r *Session) flushNotifs(w wire.Welcome) {
	resend := func(m core.Taken) {
		if err := r.notifLink.Core.Resend(m); err != nil {
			r.s.Log.Error("notification lost", "peer", r.name, "err", err)
		}
	}
	first := firstNumber(w)
	before, later := map[uint64]core.Taken{}, 0 // by number; the others follow
	for later < len(r.notifs) && r.notifs[later].Numbered && r.notifs[later].Seq < first {
		before[r.notifs[later].Seq] = r.notifs[later]
		later++
	}
	have := w.Have
	for seq := w.NextSeq; seq < first; seq++ {
		if seq == w.NextSeq+uint64(have[0]) {
			have = have[1:] // never empty before first is reached
			continue
		}
		m := before[seq]
		m.Skip, m.Numbered, m.Seq = !m.Numbered, true, seq
		resend(m)
	}
	for _, m := range r.notifs[later:] {
		m.Numbered = false
		resend(m)
	}
	r.clearNotifs()
}

// olderThan gives the departure of a session with the engine that r is for, made before r; nil: there is none.
func (s *Sessions) olderThan(r *Session) *departure {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for old, d := range s.leavers {
		if old.blob.Engine == r.blob.Engine && old.number < r.number {
			return d
		}
	}
	return nil
}

// notifCost is what a notification counts towards notif_queue: its bytes, and 64 for its keeping, as in the core.
func notifCost(msg []byte) uint64 { return uint64(len(msg)) + 64 }

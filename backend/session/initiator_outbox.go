package session

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/wire"
)

// Accepted notifications outlive their session if it is lost and the peer is not dead: the next session sends them. Its
// numbers continue those of the session before (Hello.After). The target says which of those it has (Welcome.NextSeq,
// Have). The target holds messages behind gaps that we no longer have. So we fill the gaps first, with the kept message
// of each number, or with a SKIP.

// redialNotifs is the interval of dials for kept notifications, until peer_timeout.
const redialNotifs = 500 * time.Millisecond

// keepNotifs takes the undelivered notifications from the links before they are dropped. Under mu.
func (r *Initiator) keepNotifs() {
	if !r.hasSess {
		return
	}
	var kept []core.Taken
	for _, l := range r.links { // all links first: a message taken from one lets the session number more on the others
		_ = r.s.Links.Quiesce(l) // Quiesce logs the error
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
			l.Core.FailUnacked()
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

// unsent returns true if the next session must send notifications or fill a gap. Under mu.
func (r *Initiator) unsent() bool { return len(r.notifs) > 0 || r.gap }

// dropNotifs gives up the notifications that wait for a session. Under mu.
func (r *Initiator) dropNotifs() {
	if len(r.notifs) > 0 {
		r.s.Log.Warn("notifications lost", "peer", r.name, "count", len(r.notifs), "err", r.err, errcode.Key, errcode.NotifsLost)
	}
	r.clearNotifs()
}

// clearNotifs empties the queue for the next session. Under mu.
func (r *Initiator) clearNotifs() {
	r.notifs, r.notifLen, r.gap, r.keptUntil = nil, 0, false, time.Time{}
}

// firstNumber is the first number of a new session. All numbers that the target has are lower.
func firstNumber(w wire.Welcome) uint64 {
	if n := len(w.Have); n > 0 {
		return w.NextSeq + uint64(w.Have[n-1]) + 1
	}
	return w.NextSeq
}

// flushNotifs sends the notifications that were accepted before the session was ready. First it sends the numbers before
// this session that the target lacks. With an error the rest stays here for the next session. Under mu.
func (r *Initiator) flushNotifs(w wire.Welcome) error {
	first := firstNumber(w)
	before, later := map[uint64]core.Taken{}, 0 // by number; the others follow
	for later < len(r.notifs) && r.notifs[later].Numbered && r.notifs[later].Seq < first {
		before[r.notifs[later].Seq] = r.notifs[later]
		later++
	}
	have, resent := w.Have, 0 // resent: of r.notifs
	// A notification that was given up becomes a SKIP.
	for seq := w.NextSeq; seq < first; seq++ {
		if seq == w.NextSeq+uint64(have[0]) {
			have = have[1:] // never empty before seq reaches first
			continue
		}
		m := before[seq]
		if m.Numbered {
			resent++
		}
		m.Skip, m.Numbered, m.Seq = !m.Numbered, true, seq
		if err := r.notifLink.Core.Resend(m); err != nil {
			return r.unsentFrom(min(resent, later), err)
		}
	}
	for i, m := range r.notifs[later:] {
		m.Numbered = false
		if err := r.notifLink.Core.Resend(m); err != nil {
			return r.unsentFrom(later+i, err)
		}
	}
	r.clearNotifs()
	return nil
}

// unsentFrom keeps the notifications that were not sent again, and says why. Under mu.
func (r *Initiator) unsentFrom(i int, err error) error {
	r.notifs, r.gap = slices.Clone(r.notifs[i:]), true
	r.notifLen = 0
	for _, m := range r.notifs {
		r.notifLen += notifCost(m.Body)
	}
	return fmt.Errorf("send notifications of the session before: %w", err)
}

// olderThan returns the disconnection of a session with the engine of r that was made before r. nil: there is none.
func (s *Initiators) olderThan(r *Initiator) *disconnection {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for old, d := range s.disconnecting {
		if old.blob.Engine == r.blob.Engine && old.number < r.number {
			return d
		}
	}
	return nil
}

// notifCost is the size of a notification in notif_queue: its bytes, and 64 of overhead, as in the core.
func notifCost(msg []byte) uint64 { return uint64(len(msg)) + 64 }

// Notify sends a notification without a transfer. It queues the notification at once, even while the peer is still
// connecting, up to notif_queue bytes a peer. An accepted notification arrives unless the peer dies. Implements
// genNotif.
func (s *Initiators) Notify(name string, msg []byte) error {
	if len(msg) > core.MaxNotif {
		return errcode.NotifTooLong.Errorf("notification of %d bytes: the limit is %d", len(msg), core.MaxNotif)
	}
	r := s.Of(name)
	if r == nil {
		return errcode.UnknownPeer.Errorf("notify: no connection info of agent %q is loaded", name)
	}
	r.mu.RLock()
	if r.state == ready && r.leaving == nil {
		defer r.mu.RUnlock()
		return r.send(msg)
	}
	r.mu.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.postable(); err != nil {
		return err
	}
	if r.state == ready {
		return r.send(msg)
	}
	if size := notifCost(msg); r.notifLen > 0 && r.notifLen+size > r.s.Options.NotifQueue {
		return r.full(len(msg))
	}
	r.notifLen += notifCost(msg)
	if !r.keptUntil.IsZero() {
		r.keptUntil = time.Now().Add(r.s.Options.PeerTimeout)
	}
	r.notifs = append(r.notifs, core.Taken{Body: bytes.Clone(msg)})
	return nil
}

// full is the error of a notification of n bytes that the queue has no room for.
func (r *Initiator) full(n int) error {
	return errcode.NotifQueueFull.Errorf("notification of %d bytes to peer %q refused: the queue limit of %d bytes would be exceeded, and the peer takes none in (option notif_queue)",
		n, r.name, r.s.Options.NotifQueue)
}

// send queues the message on the notification link. Under mu.
func (r *Initiator) send(msg []byte) error {
	err := r.notifLink.Core.Notify(msg)
	if errors.Is(err, core.ErrFull) {
		return r.full(len(msg))
	}
	if err != nil {
		return errcode.NotifRefused.Errorf("notify peer %q: %w", r.name, err)
	}
	return nil
}

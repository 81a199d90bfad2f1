package target

import (
	"errors"
	"fmt"
	"time"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/notify"
)

// begin continues the numbers of an earlier session. nil: the numbers begin with this session. It runs before the
// session is visible to others.
func (o *order) begin(before *notifProgress, session uint64) {
	if before == nil {
		before = &notifProgress{first: session, asm: notify.New(notify.Limits{}), skip: map[uint64]bool{}}
	}
	o.asm, o.skip, o.first = before.asm, before.skip, before.first
}

// inOrder calls f under order.mu, after Go has put in order all messages that the core handed to it.
func (t *Session) inOrder(f func()) error {
	for deadline := time.Now().Add(time.Second); ; {
		t.order.mu.Lock()
		if _, handed := t.sess.NextSeq(); handed == t.order.handled {
			f()
			t.order.mu.Unlock()
			return nil
		}
		t.order.mu.Unlock()
		if time.Now().After(deadline) {
			return errors.New("notifications were not put in order within a second")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// proof returns which notifications have come. The closed endpoint delivers no more. Notifications that other endpoints
// deliver meanwhile do no harm.
func (t *Session) proof() (p core.Proof, err error) {
	err = t.inOrder(func() {
		p = core.Proof{Next: t.nextLocked(), Have: t.order.asm.Have()}
		if len(t.links) == 1 {
			t.order.asm.DropPartial()
		}
	})
	return p, err
}

// message takes in messages that the core does not deliver itself: fragments, and messages out of order.
func (t *Session) message(ev core.Event) {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.order.handled++
	if t.isGone() {
		return
	}
	defer t.sess.Handled(len(ev.Data))
	if t.order.refused {
		return
	}
	next, _ := t.sess.NextSeq()
	ready := t.order.asm.Advance(next)
	frame := notify.Frame{Seq: ev.Seq, Subs: 1, Total: ev.Total, Offset: ev.Offset, Payload: ev.Data}
	if ev.Subs == 0 && ev.Seq >= t.order.asm.Next() {
		t.order.asm.Forget(ev.Seq) // drop what came of it before the sender gave it up
		t.order.skip[ev.Seq] = true
	}
	more, err := t.order.asm.Add(frame)
	if err != nil {
		t.s.Limits.Hit(limits.SenderReassembly)
		t.refuse(err)
		return
	}
	t.holdPending(int64(t.order.asm.Counts().Bytes))
	for _, m := range append(ready, more...) {
		if t.order.skip[m.Seq] {
			delete(t.order.skip, m.Seq)
			continue
		}
		t.order.late = append(t.order.late, m.Body)
	}
	t.deliver()
}

const lateRetry = 5 * time.Millisecond

// deliverLast tries again to deliver before the session is freed, for a second at most. Under mu.
func (t *Session) deliverLast() {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(lateRetry) {
		t.order.mu.Lock()
		t.deliver()
		n := len(t.order.late)
		if n > 0 && time.Now().After(deadline) {
			t.s.Log.Error("notifications lost: no memory for them before their session ended", "peer", t.in.Agent(), "count", n)
			n, t.order.late = 0, nil
		}
		t.order.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

// deliver gives the application what is in order, and tries again while memory is short. Under order.mu.
func (t *Session) deliver() {
	for len(t.order.late) > 0 {
		if t.sess.Deliver(t.order.late[0]) != nil {
			if !t.order.retrying {
				t.order.retrying = true
				t.s.Life.After(lateRetry, t.deliverAgain)
			}
			return
		}
		t.order.late = t.order.late[1:]
	}
	t.order.late = nil
	if t.order.asm.Pending() == 0 {
		t.sess.Resume(t.order.asm.Next(), t.order.handled)
	}
}

// deliverAgain tries again, unless deliverLast has emptied the list: the session may be freed since.
func (t *Session) deliverAgain() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.order.retrying = false
	if len(t.order.late) > 0 {
		t.deliver()
	}
}

// refuse takes nothing more from the peer, and ends the peer's session. Under order.mu.
func (t *Session) refuse(err error) {
	t.order.refused = true
	t.s.warnOf(t.in, "notification refused; the session is closed", "err", err)
	go func() {
		if t.s.Life.Enter() {
			defer t.s.Life.Leave()
			t.close()
			t.in.Close("bad notification: " + err.Error())
		}
	}()
}

// holdPending notes the bytes of notifications that wait for a fragment or an earlier notification. If all peers
// together exceed notif_memory, it ends the session with the most bytes.
func (t *Session) holdPending(bytes int64) {
	s := t.s
	before := t.order.pending.Swap(bytes)
	if s.pending.Add(bytes-before) <= int64(s.Options.NotifMemory) || bytes <= before { //limit:reassembly
		return
	}
	s.Limits.Hit(limits.Reassembly)
	s.mu.RLock()
	worst := t
	for _, other := range s.byID {
		if other.order.pending.Load() > worst.order.pending.Load() {
			worst = other
		}
	}
	s.mu.RUnlock()
	err := fmt.Errorf("%d MiB of this peer's notifications wait for a fragment or an earlier one, and all peers together hold more than %d MiB (option notif_memory)",
		worst.order.pending.Load()>>20, s.Options.NotifMemory>>20)
	if worst == t {
		t.refuse(err)
		return
	}
	go func() { // outside of our order.mu
		worst.order.mu.Lock()
		defer worst.order.mu.Unlock()
		if !worst.order.refused { // it may take notifications in while it is closing
			worst.refuse(err)
		}
	}()
}

func (t *Session) isGone() bool {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	return t.s.byID[t.id] != t
}

package target

import (
	"errors"
	"fmt"
	"time"

	"gorail/backend/core"
	"gorail/backend/notify"
)

// begin goes on from where an earlier session got; nil: numbers begin with this one. Before anybody else has the session.
func (o *order) begin(before *taken, session uint64) {
	if before == nil {
		before = &taken{first: session, asm: notify.New(notify.Limits{}), skip: map[uint64]bool{}}
	}
	o.asm, o.skip, o.first = before.asm, before.skip, before.first
}

// inOrder calls f under order.mu, as soon as Go has put in order whatever the core handed to it.
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

// proof says what has come: over the endpoint that was closed nothing new does, and what others bring is no harm.
func (t *Session) proof() (p core.Proof, err error) {
	err = t.inOrder(func() {
		p = core.Proof{Next: t.nextLocked(), Have: t.order.asm.Have()}
		if len(t.links) == 1 {
			t.order.asm.DropPartial()
		}
	})
	return p, err
}

// message takes in what the core did not deliver by itself: fragments, and what came out of order.
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
	frame := notify.Frame{Seq: ev.Seq, Parts: 1, Total: ev.Total, Offset: ev.Offset, Payload: ev.Data}
	if ev.Parts == 0 && ev.Seq >= t.order.asm.Next() {
		t.order.asm.Forget(ev.Seq) // what came of it before the sender gave it up
		t.order.skip[ev.Seq] = true
	}
	more, err := t.order.asm.Add(frame)
	if err != nil {
		t.refuse(err)
		return
	}
	t.holdPending(int64(t.order.asm.Counts().Bytes))
	for _, m := range append(ready, more...) {
		if t.order.skip[m.Seq] {
			delete(t.order.skip, m.Seq)
			continue
		}
		if err := t.sess.Deliver(m.Body); err != nil {
			t.s.Log.Error("notification lost: out of memory", "peer", t.in.Agent(), "len", len(m.Body))
		}
	}
	if t.order.asm.Pending() == 0 {
		t.sess.Resume(t.order.asm.Next(), t.order.handled)
	}
}

// refuse takes nothing more from the peer, and ends its session. Under order.mu.
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

// holdPending says how many bytes of notifications wait for a part or an earlier one. While those of all peers are too many the session
// ends that has the most.
func (t *Session) holdPending(bytes int64) {
	s := t.s
	before := t.order.pending.Swap(bytes)
	if s.pending.Add(bytes-before) <= int64(s.Options.NotifMemory) || bytes <= before {
		return
	}
	s.mu.RLock()
	worst := t
	for _, other := range s.byID {
		if other.order.pending.Load() > worst.order.pending.Load() {
			worst = other
		}
	}
	s.mu.RUnlock()
	err := fmt.Errorf("%d MiB of notifications wait for a part, and of all peers more than %d MiB (option notif_memory)", worst.order.pending.Load()>>20, s.Options.NotifMemory>>20)
	if worst == t {
		t.refuse(err)
		return
	}
	go func() { // not under our order.mu
		worst.order.mu.Lock()
		defer worst.order.mu.Unlock()
		if !worst.order.refused { // it may take notifications in though it is closing
			worst.refuse(err)
		}
	}()
}

func (t *Session) isGone() bool {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	return t.s.byID[t.id] != t
}

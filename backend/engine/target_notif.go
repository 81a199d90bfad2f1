package engine

import (
	"errors"
	"fmt"
	"time"

	"gorail/backend/core"
	"gorail/backend/notify"
)

// inOrder calls f under asmMu, as soon as Go has put in order whatever the core handed to it.
func (t *target) inOrder(f func()) error {
	for deadline := time.Now().Add(time.Second); ; {
		t.asmMu.Lock()
		if _, handed := t.sess.NextSeq(); handed == t.handled {
			f()
			t.asmMu.Unlock()
			return nil
		}
		t.asmMu.Unlock()
		if time.Now().After(deadline) {
			return errors.New("notifications were not put in order within a second")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// proof says what has come: over the endpoint that was closed nothing new does, and what others bring is no harm.
func (t *target) proof() (p core.Proof, err error) {
	err = t.inOrder(func() {
		p = core.Proof{Next: t.nextLocked(), Have: t.asm.Have()}
		if len(t.links) == 1 {
			t.asm.DropPartial()
		}
	})
	return p, err
}

// message takes in what the core did not deliver by itself: fragments, and what came out of order.
func (t *target) message(ev core.Event) {
	t.asmMu.Lock()
	defer t.asmMu.Unlock()
	t.handled++
	if t.isGone() {
		return
	}
	defer t.sess.Handled(len(ev.Data))
	if t.refused {
		return
	}
	next, _ := t.sess.NextSeq()
	ready := t.asm.Advance(next)
	frame := notify.Frame{Seq: ev.Seq, Parts: 1, Total: ev.Total, Offset: ev.Offset, Payload: ev.Data}
	if ev.Parts == 0 && ev.Seq >= t.asm.Next() {
		t.asm.Forget(ev.Seq) // what came of it before the sender gave it up
		t.skip[ev.Seq] = true
	}
	more, err := t.asm.Add(frame)
	if err != nil {
		t.refuse(err)
		return
	}
	t.holdPending(int64(t.asm.Counts().Bytes))
	for _, m := range append(ready, more...) {
		if t.skip[m.Seq] {
			delete(t.skip, m.Seq)
			continue
		}
		if err := t.sess.Deliver(m.Body); err != nil {
			t.e.log.Error("notification lost: out of memory", "peer", t.in.Agent(), "len", len(m.Body))
		}
	}
	if t.asm.Pending() == 0 {
		t.sess.Resume(t.asm.Next(), t.handled)
	}
}

// refuse takes nothing more from the peer, and ends its session. Under asmMu.
func (t *target) refuse(err error) {
	t.refused = true
	t.e.warnOf(t.in, "notification refused; the session is closed", "err", err)
	go func() {
		if t.e.enter() {
			defer t.e.leave()
			t.close()
			t.in.Close("bad notification: " + err.Error())
		}
	}()
}

// holdPending says how many bytes of notifications wait for a part or an earlier one. While those of all peers are too many the session
// ends that has the most.
func (t *target) holdPending(bytes int64) {
	e := t.e
	before := t.pending.Swap(bytes)
	if e.pending.Add(bytes-before) <= int64(e.opt.NotifMemory) || bytes <= before {
		return
	}
	e.mu.RLock()
	worst := t
	for _, other := range e.byID {
		if other.pending.Load() > worst.pending.Load() {
			worst = other
		}
	}
	e.mu.RUnlock()
	err := fmt.Errorf("%d MiB of notifications wait for a part, and of all peers more than %d MiB (option notif_memory)", worst.pending.Load()>>20, e.opt.NotifMemory>>20)
	if worst == t {
		t.refuse(err)
		return
	}
	go func() { // not under our asmMu
		worst.asmMu.Lock()
		defer worst.asmMu.Unlock()
		if !worst.refused { // it may take notifications in though it is closing
			worst.refuse(err)
		}
	}()
}

func (t *target) isGone() bool {
	t.e.mu.RLock()
	defer t.e.mu.RUnlock()
	return t.e.byID[t.id] != t
}

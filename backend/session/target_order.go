package session

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/wire"
)

// begin continues the numbers of an earlier session. nil: the numbers begin with this session. It runs before the
// session is visible to others.
func (o *order) begin(before *notifProgress, session uint64) {
	if before == nil {
		before = &notifProgress{first: session, asm: NewAssembler(Limits{}), skip: map[uint64]bool{}}
	}
	o.asm, o.skip, o.first = before.asm, before.skip, before.first
}

// inOrder calls f under order.mu, after Go has put in order all messages that the core handed to it.
func (t *Target) inOrder(f func()) error {
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

// message takes in messages that the core does not deliver itself: fragments, and messages out of order.
func (t *Target) message(ev core.Event) {
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
	frame := Frame{Seq: ev.Seq, Subs: 1, Total: ev.Total, Offset: ev.Offset, Payload: ev.Data}
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
func (t *Target) deliverLast() {
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
func (t *Target) deliver() {
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
func (t *Target) deliverAgain() {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	t.order.retrying = false
	if len(t.order.late) > 0 {
		t.deliver()
	}
}

// refuse takes nothing more from the peer, and ends the peer's session. Under order.mu.
func (t *Target) refuse(err error) {
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
func (t *Target) holdPending(bytes int64) {
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

func (t *Target) isGone() bool {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	return t.s.byID[t.id] != t
}

// mostProgress bounds the engines of which progress is kept. Option notif_memory bounds the bytes behind gaps, of all
// engines together.
const mostProgress = 4096

// saveProgress saves the progress of a session that ends. Messages behind a gap are given up after two peer_timeouts if the
// engine has not come back. The engine reconnects for peer_timeout, and may notice the end later than we do.
func (s *Targets) saveProgress(id wire.EngineID, now *notifProgress) {
	if s.Life.Ending() || now.asm.Next() == 0 && now.asm.Pending() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.progress[id]; before != nil && before.last > now.last {
		s.dropHeld(now, id) // an older session may end later
		return
	}
	if len(s.progress) >= mostProgress && s.progress[id] == nil {
		s.Limits.Hit(limits.Progress)
		s.dropProgress(s.progressToDrop())
	}
	s.progress[id] = now //limit:notif_progress
	if now.asm.Pending() == 0 {
		return
	}
	held := uint64(0)
	for _, t := range s.progress {
		held += t.asm.Counts().Bytes
	}
	if held > s.Options.NotifMemory { //limit:notif_progress_bytes
		s.Limits.Hit(limits.ProgressBytes)
		s.dropHeld(now, id)
		return
	}
	s.Life.After(2*s.Options.PeerTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.progress[id] == now {
			s.dropHeld(now, id)
		}
	})
}

// progressToDrop is an engine of the identity that has the most entries among any 64, and of its source with the most: engine
// ids are free to make, and only an engine that reconnects within its peer_timeout needs its entry. Without certificates
// all have one identity. Under mu.
func (s *Targets) progressToDrop() (id wire.EngineID) {
	type entry struct {
		id    wire.EngineID
		owner limits.Owner
	}
	var some []entry
	identities, owners := map[limits.ID]int{}, map[limits.Owner]int{}
	for id, t := range s.progress {
		some = append(some, entry{id, t.owner})
		identities[t.owner.Identity]++
		owners[t.owner]++
		if len(some) == 64 {
			break
		}
	}
	return slices.MaxFunc(some, func(a, b entry) int {
		return cmp.Or(cmp.Compare(identities[a.owner.Identity], identities[b.owner.Identity]), cmp.Compare(owners[a.owner], owners[b.owner]))
	}).id
}

// dropProgress forgets an engine's progress. Under mu.
func (s *Targets) dropProgress(id wire.EngineID) {
	if t := s.progress[id]; t != nil {
		s.dropHeld(t, id)
		delete(s.progress, id)
	}
}

// dropHeld gives up the messages behind a gap. Under mu.
func (s *Targets) dropHeld(t *notifProgress, id wire.EngineID) {
	if n := t.asm.Pending(); n > 0 {
		if !s.warnLimit.Warn(s.Log, time.Now(), "notifications dropped: earlier ones never arrived, and the peer began no session that sends them again", "engine", id, "count", n) {
			s.Limits.Hit(limits.LogLines)
		}
		next := t.asm.Next()
		t.asm, t.skip = NewAssembler(Limits{}), map[uint64]bool{}
		t.asm.Advance(next)
	}
}

// progressAfter is an engine's progress when its session `after` was lost. nil: none is known, and the numbers begin anew.
// The progress stays saved until the session that asks is open. One session asks at a time, with older sessions frozen.
func (s *Targets) progressAfter(id wire.EngineID, after uint64) *notifProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.progress[id]
	switch {
	case t == nil:
	case after < t.first || after > t.last: // 0, or a session before these numbers
		s.dropProgress(id)
	default:
		if have := t.asm.Have(); len(have) > wire.MaxHave || len(have) > 0 && have[len(have)-1]-t.asm.Next() > math.MaxUint16 {
			s.dropHeld(t, id) // no initiator of ours has so many in flight
		}
		return t
	}
	return nil
}

// distances are the distances of the waiting notifications from the next one.
func distances(asm *Assembler) (d []uint16) {
	for _, seq := range asm.Have() {
		d = append(d, uint16(seq-asm.Next()))
	}
	return d
}

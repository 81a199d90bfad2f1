package transfer

import (
	"errors"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// unqueue takes a waiting transfer out and gives it its status; false: it is not waiting.
func (t *Transfer) unqueue(code status.Code) bool {
	p := t.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.rec.State() != xfer.Queued {
		return false
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(w *Transfer) bool { return w == t })
	t.tab.records.Rest(t.rec) // before it may be posted again
	t.x.Finalize(int32(code))
	return true
}

// Abort ends the transfer: unposted parts at once, posted ones as they drain. True: it has ended.
func (t *Transfer) Abort(code status.Code, why string) bool {
	if t.unqueue(code) {
		return true
	}
	if s := t.staging(); s != nil {
		s.Cancel(code, errors.New(why))
		return !t.x.Running()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.DropCachedPost() // the next post goes through Go, which forgets the reason
	if t.freed() || !t.x.Running() {
		return true
	}
	if t.reason == "" {
		t.reason, t.aborted = why, time.Now()
	}
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !t.attached() {
		return !t.x.Running()
	}
	return t.tab.Core.Abort(t.x, int32(code))
}

// Release gives the request up, in any state. In flight it is aborted and waited for up to release_wait; if it has not
// drained by then it lives on as a zombie until it has, and its memory stays registered. A READ writes nothing any more when this returns:
// the endpoints on which it has something posted are closed, and what other transfers had there is sent again after the fence. Where that
// can't be done, ErrRepostActive: the request is kept, and the second call waits for it up to cancel_timeout. Implements releaseReqH.
func (tab *Table) Release(handle uint64) error {
	t, err := tab.Get(handle)
	if err != nil {
		return status.Errorf(status.ErrNotFound, "release: %w", err)
	}
	return t.Release()
}

// Release is Table.Release.
func (t *Transfer) Release() error {
	o := t.tab.Options
	t.zombie.Store(true) // first: it is not begun anew, staged
	if t.x.Running() && !t.Abort(status.ErrCanceled, "released by the application") {
		t.tab.Core.Wait(t.x, o.ReleaseWait)
	}
	if t.op == Read && !t.silence() {
		if t.keep() {
			return status.Errorf(status.ErrRepostActive, "release: the READ from peer %q may still write to local memory, and no endpoint can be "+
				"closed to end that: release it again", t.peer.Name)
		}
		if t.drained(time.Now().Add(o.CancelTimeout)); t.inUse() {
			t.tab.Log.Error("a released READ may still write to local memory", "peer", t.peer.Name, "cancel_timeout", o.CancelTimeout)
		}
	}
	if t.reap() {
		t.peer.session.FinishRevokes()
	}
	return nil
}

// reap frees a released transfer once it has drained. True: it is freed.
func (t *Transfer) reap() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() {
		return true
	}
	t.x.DropCachedPost()
	if t.x.Running() {
		return false
	}
	t.sample() // most are posted once
	t.logPath()
	_ = t.tab.records.Free(t.rec) // first: who looks at x without mu asks freed
	t.tab.Core.FreeXfer(t.x)
	for _, g := range t.locals {
		t.tab.Regions.Regions.Unpin(g)
	}
	for _, g := range t.remotes {
		t.tab.Regions.Regions.Unpin(g)
	}
	return true
}

// end aborts the transfers that match, and returns when they have drained; see EndTransfers.
func (tab *Table) end(match func(*Transfer) bool, deadline time.Time, why string) {
	var left []*Transfer
	for _, t := range tab.active(match) {
		if !t.Abort(status.ErrBackend, why) {
			left = append(left, t)
		}
	}
	for _, t := range left {
		if !t.drained(deadline) {
			t.fence("a transfer over deregistered memory did not drain within cancel_timeout")
			t.drained(time.Now().Add(time.Second))
		}
	}
}

// drained waits until a transfer that was aborted uses no memory of ours any more, or the deadline.
func (t *Transfer) drained(deadline time.Time) bool {
	for t.Busy() && t.inUse() {
		if !time.Now().Before(deadline) {
			return false
		}
		t.tab.Core.Wait(t.x, time.Millisecond)
	}
	return true
}

// inUse says that a transfer that was aborted still uses memory of ours.
func (t *Transfer) inUse() bool {
	if s := t.staging(); s != nil {
		return s.Copying() || slices.ContainsFunc(s.Inner(), (*Transfer).inUse)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || t.x.Status() == 0 {
		return false
	}
	return t.leaked.Load() || t.x.Running() && t.tab.Core.Posted(t.x, core.Link{})
}

// silence ends what a READ that was aborted still writes to memory of ours. False: nothing can.
func (t *Transfer) silence() bool {
	if !t.inUse() {
		return true
	}
	t.fence("a READ that was released did not drain within release_wait")
	return !t.inUse()
}

// keep says that a release is refused: not when one was before, and not when the transfer has ended meanwhile.
func (t *Transfer) keep() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || t.kept {
		return false
	}
	t.kept = true
	t.zombie.Store(false)
	return true
}

// fence fences the links on which a transfer that was aborted has something posted.
func (t *Transfer) fence(why string) {
	if s := t.staging(); s != nil {
		for _, i := range s.Inner() {
			i.fence(why)
		}
		return
	}
	p := t.peer
	var on []Route
	t.mu.Lock()
	p.mu.RLock()
	for _, r := range p.view.Routes {
		if !t.freed() && t.tab.Core.Posted(t.x, r.Link) {
			on = append(on, r)
		}
	}
	p.mu.RUnlock()
	t.mu.Unlock()
	p.session.Fence(on, why)
}

// EndTransfers aborts the transfers over regions that go away and returns when they have drained; after the deadline their endpoints
// are closed, which ends all access to local memory. Implements region.Users.
func (tab *Table) EndTransfers(gone []*region.Region, deadline time.Time, why string) {
	tab.end(func(t *Transfer) bool { return slices.ContainsFunc(gone, t.uses) }, deadline, why)
}

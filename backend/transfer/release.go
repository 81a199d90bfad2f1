package transfer

import (
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/region"
)

// unqueue removes a waiting transfer from the queue and gives it the status of err. False: it is not waiting.
func (t *Transfer) unqueue(err error) bool {
	p := t.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.rec.State() != Queued {
		return false
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(w *Transfer) bool { return w == t })
	if t.why = err; t.inner == nil && !t.zombie.Load() {
		t.tab.Log.Error("transfer failed", "peer", p.Name, "status", errcode.StatusOf(err).String(), "reason", err, "bytes", t.bytes, "bytes_left", t.bytes,
			errcode.Key, errcode.Of(err))
	}
	t.tab.records.Retire(t.rec) // before the next post is possible
	t.x.Finalize(int32(errcode.StatusOf(err)))
	return true
}

// Abort ends the transfer with an error of package errcode: unposted operations at once, posted ones as they drain. True: it has
// ended.
func (t *Transfer) Abort(why error) bool {
	if t.unqueue(why) {
		return true
	}
	if s := t.run.Load(); s != nil {
		s.Cancel(why)
		return !t.x.Running()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.x.DropCachedPost() { // the next post goes through Go, which clears the reason
		return false
	}
	if t.freed() || !t.x.Running() {
		if may, _ := t.mayRestart(); may {
			t.reason = why // prevents it
		}
		if t.taken { // it does not start again
			t.reason, t.taken = why, false
		}
		return true
	}
	if t.reason == nil || t.taken { // one whose memory was taken does not start again
		t.reason, t.taken, t.aborted = why, false, time.Now()
	}
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !t.linksOfReadySession() {
		return !t.x.Running()
	}
	return t.tab.Core.Abort(t.x, int32(errcode.StatusOf(why)))
}

// Release releases the request, in any state. A transfer in flight is aborted; Release waits for it up to ReleaseWait. If it
// has not drained by then, it lives on as a zombie until drained, and its memory stays registered.
//
// A released READ writes nothing after Release returns. The endpoints with posted operations of it are closed. Operations of
// other transfers there are sent again after the fence. If no endpoint can be closed, Release returns ErrRepostActive and keeps
// the request; the second call waits up to cancel_timeout. Implements releaseReqH.
func (tab *Table) Release(handle uint64) error {
	t, err := tab.Get(handle)
	if err != nil {
		return errcode.UnknownTransfer.Errorf("release: %w", err)
	}
	return t.Release()
}

// Release implements Table.Release.
func (t *Transfer) Release() error {
	o := t.tab.Options
	t.mu.Lock()
	t.zombie.Store(true) // first: prevents a restart over bounce buffers
	t.mu.Unlock()
	if t.x.Running() && !t.Abort(errcode.Released.Errorf("released by the application")) {
		t.tab.Core.Wait(t.x, o.ReleaseWait)
	}
	if t.op == Read && !t.stopWrites("a released READ did not drain in time") {
		if t.keep() {
			return errcode.ReadMayWrite.Errorf("release: the READ from peer %q may still write to local memory, and no endpoint can be "+
				"closed to stop the writes: release the request again", t.peer.Name)
		}
		if t.drained(time.Now().Add(o.CancelTimeout)); t.inUse() {
			t.tab.Log.Error("a released READ may still write to local memory", "peer", t.peer.Name, "cancel_timeout", o.CancelTimeout)
		}
	}
	if t.reap() {
		t.peer.finishRevokes()
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
	if !t.x.DropCachedPost() || t.x.Running() || t.gpuBusy() {
		return false
	}
	t.sample() // most transfers are posted once
	t.logPath()
	_ = t.tab.records.Free(t.rec) // first: readers of x without mu check freed
	t.tab.Core.FreeXfer(t.x)
	for _, g := range t.Locals() {
		t.tab.Regions.Regions.Unpin(g)
	}
	for _, g := range t.remotes {
		t.tab.Regions.Regions.Unpin(g)
	}
	return true
}

// end aborts the matching transfers, and returns when they have drained; see EndTransfers.
func (tab *Table) end(match func(*Transfer) bool, deadline time.Time, why string) {
	var left []*Transfer
	for _, t := range tab.matching(match) {
		if !t.x.Running() {
			t.dropCachedPost() // the next post looks for another registration of the memory
		} else if !t.leave(match, errcode.LocalGone.Errorf("%s", why)) {
			left = append(left, t)
		}
	}
	for _, t := range left {
		uses := func() bool { return match(t) } // it may have started again, over other registrations
		first, last := t.patience(deadline)
		if !t.drained(first, uses) {
			t.fence(why+", and a transfer over it did not drain within cancel_timeout", false)
			t.drained(last, uses)
		}
	}
}

// leave is Abort, for a transfer whose local memory is being deregistered. If other registrations have all of that memory, what is posted
// completes, and finalize starts the rest again over them. A transfer that has started again over them already goes on: it uses the memory
// no more.
func (t *Transfer) leave(uses func(*Transfer) bool, why error) (ended bool) {
	t.tab.Regions.Settle() // others may have the memory
	run, ended, covered := t.leaveCovered(uses, why)
	switch {
	case run != nil:
		run.Cancel(why) // this run: EndRun may have started another one over other registrations
		return !t.x.Running()
	case !covered:
		return t.Abort(why)
	}
	return ended
}

// leaveCovered is leave. run: the transfer is staged by it. !covered: other registrations do not have all of the memory.
func (t *Transfer) leaveCovered(uses func(*Transfer) bool, why error) (run *Run, ended, covered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	run = t.run.Load()
	if run == nil && !t.x.DropCachedPost() { // before Peer.mu: it waits for a thread that posts
		return nil, false, true
	}
	p := t.peer
	p.mu.RLock() // cover changes the operations of a queued transfer without t.mu
	defer p.mu.RUnlock()
	switch {
	case !uses(t):
		return nil, true, true
	case run != nil:
		return run, false, true
	case !t.coveredHere():
		return nil, false, false
	case t.freed() || !t.x.Running():
		return nil, true, true
	case t.rec.State() == Queued: // the core will refuse it, and then it starts again
		return nil, true, true
	case !t.linksOfReadySession(): // it ends with its session
		if t.reason == nil {
			t.reason, t.aborted = why, time.Now()
		}
		return nil, false, true
	}
	ended = t.tab.Core.AbortUnposted(t.x, int32(errcode.ErrBackend))
	if err, _ := t.x.Err(); err != 0 && t.reason == nil {
		t.reason, t.taken = why, true
	}
	return nil, ended, true
}

// dropCachedPost is Xfer.DropCachedPost with mu, which it takes. For end, of a transfer that does not run. A post that is in C for longer
// has not begun: it will find the region not live, or its new keys.
func (t *Transfer) dropCachedPost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.DropCachedPost()
}

// patience is until when a deregistration waits for the transfer to drain, and until when once its links are fenced. The deregistrations
// of all its regions together wait as long as the first one: an agent that ends makes them one after the other.
func (t *Transfer) patience(deadline time.Time) (first, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drain.IsZero() {
		t.drain = deadline
	}
	return t.drain, t.drain.Add(time.Second)
}

// drained waits until an aborted transfer no longer uses local memory, or that of uses, or until the deadline.
func (t *Transfer) drained(deadline time.Time, uses ...func() bool) bool {
	for (t.Busy() || t.gpuBusy()) && t.inUse() {
		if len(uses) > 0 && !uses[0]() {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
		if t.tab.Core.Wait(t.x, time.Millisecond); !t.x.Running() {
			time.Sleep(time.Millisecond)
		}
	}
	return true
}

// inUse reports that an aborted transfer still uses local memory.
func (t *Transfer) inUse() bool {
	if s := t.run.Load(); s != nil {
		return s.copying() || slices.ContainsFunc(s.inners(), (*Transfer).inUse)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || t.x.Status() == 0 {
		return false
	}
	return t.leaked.Load() || t.gpuBusy() || t.x.Running() && t.tab.Core.Posted(t.x, core.Link{})
}

// stopWrites ends the writes of an aborted READ to local memory. False: they cannot be ended.
func (t *Transfer) stopWrites(why string) bool {
	if !t.inUse() {
		return true
	}
	t.fence(why, false)
	return !t.inUse()
}

// EndReads returns when no READ of the list, which are aborted, writes to local memory any more. It waits up to ReleaseWait,
// then closes their endpoints. Where none can be closed it returns all the same.
func (p *Peer) EndReads(list []*Transfer) {
	deadline := time.Now().Add(p.tab.Options.ReleaseWait)
	for _, t := range list {
		if t.op == Read && !t.drained(deadline) {
			t.stopWrites("a READ from a removed peer did not drain in time")
		}
	}
}

// keep reports that a release is refused. The second release is never refused, and neither is one of a freed transfer.
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

// fence fences the links on which an aborted transfer has posted operations: see Session.Fence.
func (t *Transfer) fence(why string, overdue bool) {
	if s := t.run.Load(); s != nil {
		for _, i := range s.inners() {
			i.fence(why, overdue)
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
	p.session.Fence(on, why, overdue)
}

// EndTransfers aborts the transfers over regions, whose memory is gone for the reason why, and returns when they have drained. After the deadline their
// endpoints are closed, which ends all access to local memory. A region.EndTransfers.
func (tab *Table) EndTransfers(gone []*region.Region, deadline time.Time, why string) {
	tab.end(func(t *Transfer) bool { return slices.ContainsFunc(gone, t.uses) }, deadline, why)
}

package engine

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"gorail/backend/provider"
	"gorail/backend/rlimit"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// unqueue takes a waiting transfer out and gives it its status; false: it is not waiting.
func (r *remote) unqueue(t *transfer, code status.Code) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.rec.State() != xfer.Queued {
		return false
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *transfer) bool { return w == t })
	r.e.xfers.Rest(t.rec) // before it may be posted again
	t.x.Settle(int32(code))
	return true
}

// abort ends the transfer: unposted parts at once, posted ones as they drain. True: it has ended.
func (t *transfer) abort(code status.Code, why string) bool {
	if t.remote.unqueue(t, code) {
		return true
	}
	if s := t.run.Load(); s != nil {
		s.cancel(code, errors.New(why))
		return !t.x.Running()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.x.TakeTicket() // the next post goes through Go, which forgets the reason
	if t.freed() || !t.x.Running() {
		return true
	}
	if t.reason == "" {
		t.reason, t.aborted = why, time.Now()
	}
	r := t.remote
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !t.attached(r) {
		return !t.x.Running()
	}
	return t.e.core.Abort(t.x, int32(code))
}

// Release gives the request up, in any state. In flight it is aborted and waited for up to release_wait; if it has not
// drained by then it lives on as a zombie until it has, and its memory stays registered. A READ writes nothing any more when this returns:
// the endpoints on which it has something posted are closed, and what other transfers had there is sent again after the fence. Where that
// can't be done, ErrRepostActive: the request is kept, and the second call waits for it up to cancel_timeout. Implements releaseReqH.
func (e *Engine) Release(handle uint64) error {
	rec, err := e.xfers.Get(xfer.FromUint64(handle))
	if err != nil {
		return status.Errorf(status.ErrNotFound, "release: %w", err)
	}
	t := rec.Value
	t.zombie.Store(true) // first: it is not begun anew, staged
	if t.x.Running() && !t.abort(status.ErrCanceled, "released by the application") {
		e.core.Wait(t.x, e.opt.ReleaseWait)
	}
	if t.op == opRead && !t.silence() {
		if t.keep() {
			return status.Errorf(status.ErrRepostActive, "release: the READ from peer %q may still write to local memory, and no endpoint can be "+
				"closed to end that: release it again", t.remote.name)
		}
		if t.drained(time.Now().Add(e.opt.CancelTimeout)); t.inUse() {
			e.log.Error("a released READ may still write to local memory", "peer", t.remote.name, "cancel_timeout", e.opt.CancelTimeout)
		}
	}
	if e.reap(t) {
		t.remote.settleRevokes()
	}
	return nil
}

// reap frees a released transfer once it has drained. True: it is freed.
func (e *Engine) reap(t *transfer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() {
		return true
	}
	t.x.TakeTicket()
	if t.x.Running() {
		return false
	}
	t.sample() // most are posted once
	t.tell()
	_ = e.xfers.Free(t.rec) // first: who looks at x without mu asks freed
	e.core.FreeXfer(t.x)
	for _, g := range t.locals {
		e.regions.Regions.Unpin(g)
	}
	for _, g := range t.remotes {
		e.regions.Regions.Unpin(g)
	}
	return true
}

// endTransfers aborts the transfers that match and returns when they have drained; after the deadline their endpoints
// are closed, which ends all access to local memory.
func (e *Engine) endTransfers(match func(*transfer) bool, deadline time.Time, why string) {
	var left []*transfer
	for _, t := range e.active(match) {
		if !t.abort(status.ErrBackend, why) {
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

// busy says that the transfer uses memory of either side: the core has data of it to move, or it is staged.
func (t *transfer) busy() bool { return !t.freed() && (t.x.InFlight() || t.run.Load() != nil) }

// drained waits until a transfer that was aborted uses no memory of ours any more, or the deadline.
func (t *transfer) drained(deadline time.Time) bool {
	for t.busy() && t.inUse() {
		if !time.Now().Before(deadline) {
			return false
		}
		t.e.core.Wait(t.x, time.Millisecond)
	}
	return true
}

// settle gives a failed transfer its final status and says why.
func (e *Engine) settle(t *transfer, code int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || !t.x.Unsettled() {
		return
	}
	_, wire := t.x.Err()
	if (wire == syscall.ENOTSUP || t.opening || t.away) && t.restage() {
		return
	}
	if code, held := t.hold(code, false); !held {
		t.finish(code)
	}
}

// finish gives the status that settle has found, and logs it. Under mu.
func (t *transfer) finish(code int32) {
	e := t.e
	_, wire := t.x.Err()
	why := t.reason
	switch {
	case why != "":
	case code == int32(status.ErrRemoteDisconnect):
		why = "the peer is gone"
	case wire == syscall.ENOTSUP:
		why = e.trouble()
	case wire == syscall.ESTALE:
		why = "a region of it was deregistered"
	case wire != 0:
		why = rlimit.Advise(wire).Error()
	default:
		why = t.remote.ended()
	}
	switch {
	case t.inner != nil:
		t.why = why
	case !t.zombie.Load():
		e.log.Error("transfer failed", "peer", t.remote.name, "status", status.Code(code).String(), "reason", why,
			"bytes", t.bytes, "bytes_left", t.bytes-min(t.bytes, t.x.Done()))
	}
	t.x.Settle(code)
	t.tell()
}

// trouble is why a rail could not copy, last.
func (e *Engine) trouble() string {
	for _, rl := range e.rails {
		if v, ok := rl.Rail.(provider.VRAM); ok {
			if why := v.Trouble(); why != "" {
				return fmt.Sprintf("rail %s: %s", rl.Name(), why)
			}
		}
	}
	return "this memory can't be reached over the rails in use"
}

// refusals is how often a request finds that the peer's memory can't be mapped before it no longer tries: it may have been for want of something.
const refusals = 3

// restage runs a transfer anew over rings whose links turned out not to reach the peer's memory. Under mu; false: it has failed.
func (t *transfer) restage() bool {
	if t.inner != nil || t.zombie.Load() || t.reason != "" {
		return false
	}
	r := t.remote
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state != ready {
		return false
	}
	tried := linksRefused
	switch {
	case t.away:
		t.away, tried = false, linksUntried
	case t.opening:
		t.opening, tried = false, linksOpening
	default:
		t.refused++
		t.staged = t.staged || t.refused == refusals
	}
	t.rings, t.checked = true, 0 // the next post finds out anew
	t.x.TakeTicket()
	hasNotif, msg, ok := t.x.Message()
	if !ok {
		return false
	}
	t.x.Start()
	t.stage(r, hasNotif, msg, tried)
	return true
}

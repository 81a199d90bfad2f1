package transfer

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Run is one run of a transfer that no link carries directly, as the transfer sees it: why it ends early, its inner transfers, and the
// copies of local memory in progress. Package staging moves the bytes (Stage). The run ends with Transfer.EndRun.
type Run struct {
	Transfer *Transfer
	HasNotif bool
	Msg      []byte // the run's own
	Tried    Tried

	stop chan struct{} // closed to end the run early

	mu     sync.Mutex
	err    error // why the run ends early
	inner  map[*Transfer]struct{}
	copies int // copies of local memory in progress
}

// Tried is what a run knows about links that may carry the whole transfer.
type Tried int

const (
	LinksUntried Tried = iota
	LinksRefused       // the links do not reach the peer's memory
	LinksOpening       // the links will reach it: the memory is being mapped
)

// Cancel makes the run end soon, with an error of package errcode. The first reason counts.
func (r *Run) Cancel(err error) {
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return
	}
	r.err = err
	close(r.stop)
	inner := slices.Collect(maps.Keys(r.inner))
	r.mu.Unlock()
	for _, t := range inner {
		t.Abort(err)
	}
}

// Stop is closed when the run is cancelled. Err is why.
func (r *Run) Stop() <-chan struct{} { return r.stop }
func (r *Run) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// BeginCopy counts a copy of local memory until EndCopy, unless the run has been cancelled.
func (r *Run) BeginCopy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.copies++
	return true
}

// EndCopy is not called for a copy that has not ended.
func (r *Run) EndCopy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.copies--
}

// inners returns the current inner transfers of the run.
func (r *Run) inners() []*Transfer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.inner))
}

// copying reports that the run was not cancelled, or that a copy of local memory is in progress.
func (r *Run) copying() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err == nil || r.copies > 0
}

// Move moves bytes by an inner transfer, over regions that the transfer pins, and waits for its end. Afterwards the inner transfer uses no
// memory. ErrUnreachable: no link carries it. plain: bulk rails are not used, because they do not reach the peer's memory.
func (r *Run) Move(local, remote List, plain bool) error {
	t, err := r.Transfer.newInner(local, remote, plain)
	if err != nil {
		return err
	}
	defer func() { _ = t.Release() }() // drained by then: a release cannot fail
	r.mu.Lock()
	err = r.err
	if err == nil { // under mu: a later Cancel finds the transfer posted
		r.inner[t] = struct{}{}
		_, err = t.Post(false, nil)
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.inner, t)
		r.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	t.await()
	return t.outcome()
}

// newInner prepares a transfer that serves a run of outer, over regions that outer pins. ErrUnreachable: no link carries it. The
// caller releases it.
func (outer *Transfer) newInner(local, remote List, plain bool) (*Transfer, error) {
	t := &Transfer{tab: outer.tab, peer: outer.peer, op: outer.op, inner: make(chan struct{}, 1)}
	v := &resolver{tab: t.tab, local: local, remote: remote, peer: t.peer, held: true, plain: plain}
	if err := v.plan(t); err != nil {
		return nil, err
	}
	t.x.Prove() // the next message uses the control channel or another link
	return t, nil
}

// outcome returns the result of an inner transfer that has ended: nil, ErrUnreachable, or an error with its status.
func (t *Transfer) outcome() error {
	if _, errno := t.x.Err(); t.x.Failed() && (errno == syscall.ENOTSUP || errno == syscall.EREMCHG || t.unlinked.Load()) {
		return ErrUnreachable
	}
	if !t.x.Failed() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.why == nil { // it ended before it started
		return t.peer.ended()
	}
	return t.why
}

// await waits until an inner transfer has ended. Small transfers are polled for 100 us. Between processes of one host, the
// waiting thread also copies. Otherwise the core signals the end. Transfers that the core never had end without a signal, so
// await checks every 2 ms.
func (t *Transfer) await() {
	if t.bytes <= smallBytes {
		t.tab.Core.Wait(t.x, 100*time.Microsecond)
	}
	for t.hasHost() && !t.tab.Core.Wait(t.x, time.Millisecond) {
	}
	for {
		signaled := t.x.Want()
		if !signaled && !t.x.Running() && !t.x.NeedsFinalize() {
			return
		}
		select {
		case <-t.inner:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// hasHost reports whether threads copy for one of the transfer's links (shared memory).
func (t *Transfer) hasHost() bool {
	t.peer.mu.RLock()
	defer t.peer.mu.RUnlock()
	return !t.bulk && slices.ContainsFunc(t.peer.view.Routes, func(r Route) bool { return r.Rail.Device().Host })
}

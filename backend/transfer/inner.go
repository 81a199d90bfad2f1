package transfer

import (
	"slices"
	"syscall"
	"time"
)

// Inner prepares a transfer that serves a run of outer, over regions that outer pins. ErrUnreachable: no link carries it. The
// caller releases it.
func (outer *Transfer) Inner(local, remote List) (*Transfer, error) {
	t := &Transfer{tab: outer.tab, peer: outer.peer, op: outer.op, inner: make(chan struct{}, 1)}
	v := &resolver{tab: t.tab, local: local, remote: remote, peer: t.peer, held: true}
	if err := v.plan(t); err != nil {
		return nil, err
	}
	t.x.Prove() // the next message uses the control channel or another link
	return t, nil
}

// Outcome returns the result of an inner transfer that has ended: nil, ErrUnreachable, or an error with its status.
func (t *Transfer) Outcome() error {
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

// Await waits until an inner transfer has ended. Small transfers are polled for 100 us. Between processes of one host, the
// waiting thread also copies. Otherwise the core signals the end. Transfers that the core never had end without a signal, so
// Await checks every 2 ms.
func (t *Transfer) Await() {
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

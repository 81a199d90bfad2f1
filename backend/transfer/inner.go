package transfer

import (
	"slices"
	"syscall"
	"time"

	"gorail/backend/status"
)

// Inner prepares a transfer that a run of outer is made of, over regions that outer keeps. ErrUnreachable: no link carries it. Its owner releases it.
func (outer *Transfer) Inner(local, remote List) (*Transfer, error) {
	t := &Transfer{tab: outer.tab, peer: outer.peer, op: outer.op, inner: make(chan struct{}, 1)}
	v := &resolver{tab: t.tab, local: local, remote: remote, peer: t.peer, held: true}
	if err := v.plan(t); err != nil {
		return nil, err
	}
	t.x.Prove() // what follows goes over the control channel, or by another link
	return t, nil
}

// Outcome is what became of an inner transfer that has ended: nil, ErrUnreachable, or an error with its status.
func (t *Transfer) Outcome() error {
	if _, errno := t.x.Err(); t.x.Failed() && (errno == syscall.ENOTSUP || t.unlinked.Load()) {
		return ErrUnreachable
	}
	if !t.x.Failed() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return status.Errorf(status.Code(t.x.Status()), "%s", t.why)
}

// Await waits until an inner transfer has ended. Between processes of one host it copies meanwhile, as all who wait do, and small ones are
// worth a look. The core tells; of transfers that it never had nobody does.
func (t *Transfer) Await() {
	if t.bytes <= smallBytes {
		t.tab.Core.Wait(t.x, 100*time.Microsecond)
	}
	for t.hasHost() && !t.tab.Core.Wait(t.x, time.Millisecond) {
	}
	for {
		told := t.x.Want()
		if !told && !t.x.Running() && !t.x.NeedsFinalize() {
			return
		}
		select {
		case <-t.inner:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// hasHost says that a link of the transfer's copies memory, by threads.
func (t *Transfer) hasHost() bool {
	t.peer.mu.RLock()
	defer t.peer.mu.RUnlock()
	return !t.bulk && slices.ContainsFunc(t.peer.view.Routes, func(r Route) bool { return r.Rail.Device().Host })
}

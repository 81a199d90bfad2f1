package transfer

import (
	"gorail/backend/errcode"
	"gorail/backend/provider"
)

// AwaitGPU ends the transfers of GPU memory in flight, because an endpoint was closed while a GPU may still copy for it. Their status
// waits for the GPU, also without limit: until then memory of both sides is in use. With the session's lock held.
func (p *Peer) AwaitGPU(busy *provider.GPUBusy) {
	list := p.tab.active(func(t *Transfer) bool { return t.peer == p && t.gpu })
	for _, t := range list {
		t.waitFor(busy)
	}
	p.Events.Do(p.tab.Life, func() {
		for _, t := range list {
			t.Abort(errcode.RailError.Errorf("a GPU has not ended a copy of the transfer within a second after it was cancelled: %w", busy))
		}
	})
}

// waitFor adds a closed endpoint. The transfer may wait for another one already.
func (t *Transfer) waitFor(busy *provider.GPUBusy) {
	for {
		old, next := t.busy.Load(), busy
		if old != nil {
			next = &provider.GPUBusy{Err: busy.Err, Over: func() bool { return old.Over() && busy.Over() }}
		}
		if t.busy.CompareAndSwap(old, next) {
			return
		}
	}
}

// gpuBusy reports that a GPU may still copy for an endpoint of the transfer that is closed.
func (t *Transfer) gpuBusy() bool {
	b := t.busy.Load()
	if b == nil {
		return false
	}
	if b.Over() {
		t.busy.CompareAndSwap(b, nil)
		return false
	}
	return true
}

package engine

import (
	"time"

	"gorail/backend/status"
	"gorail/backend/wire"
)

// Register makes a local range usable. Ranges may repeat and overlap; exactly the same range is the same region. A rail
// that refuses the memory does not fail the call (a refused first registration would poison the agent's metadata for
// every peer): transfers over such a region fail with the rail's reason.
func (e *Engine) Register(addr, length, dev uint64, mem int32, _ []byte) (uint64, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if !e.enter() { // Close waits for us
		return 0, status.Errorf(status.ErrBackend, "%w", errClosing)
	}
	defer e.leave()
	rng := wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem}
	if addr+length < addr {
		return 0, status.Errorf(status.ErrInvalidParam, "register %#x+%d: the range runs past the end of the address space", addr, length)
	}
	r, first, err := e.enterLocal(rng)
	if err != nil {
		return 0, err
	}
	if !first {
		<-r.ready
		return r.id, nil
	}
	defer close(r.ready)
	e.registerRails(r)
	r.node = e.nodeOf(r.Addr, r.Len) // pinned pages are there now
	r.core.SetLive(true)
	return r.id, nil
}

// enterLocal finds or enters the region of a range; first: the caller has to register it, without localMu, which
// deregistrations and peers that ask for keys want meanwhile.
func (e *Engine) enterLocal(rng wire.Range) (r *region, first bool, err error) {
	e.localMu.Lock()
	defer e.localMu.Unlock()
	if r := e.local[rng]; r != nil {
		r.refs++
		return r, false, nil
	}
	r = &region{Range: rng, refs: 1, ready: make(chan struct{}), holders: map[*target]struct{}{}}
	if err := e.regions.add(r); err != nil {
		return nil, false, err
	}
	e.local[rng] = r
	return r, true, nil
}

// RegionBlob names the range and the engine, nothing that changes.
func (e *Engine) RegionBlob(id uint64) ([]byte, error) {
	r := e.regions.get(id)
	if r == nil || r.remote != nil {
		return nil, status.Errorf(status.ErrNotFound, "region %#x is not registered", id)
	}
	return wire.RegionBlob{Engine: e.id, Addr: r.Addr, Len: r.Len, Dev: r.Dev, Mem: r.Mem}.Encode()
}

// Known says whether a range lies inside a registered region.
func (e *Engine) Known(addr, length, dev uint64, mem int32) (bool, error) {
	e.localMu.Lock()
	defer e.localMu.Unlock()
	for rng, r := range e.local {
		if rng.Dev == dev && rng.Mem == mem && r.contains(addr, length) {
			return true, nil
		}
	}
	return false, nil
}

// Deregister ends a registration. With the last one of a range: peers that hold its keys are told and waited for
// (bounded by cancel_timeout; one that does not answer loses its endpoint), our own transfers that use it are aborted
// and drained, and only then the memory is let go. Implements deregisterMem; the agent ignores the status.
func (e *Engine) Deregister(id uint64) error {
	if !e.enter() {
		return nil // all is deregistered, or about to be
	}
	defer e.leave()
	r := e.regions.get(id)
	if r == nil || r.remote != nil {
		return status.Errorf(status.ErrNotFound, "deregister: region %#x is not registered", id)
	}
	<-r.ready
	e.localMu.Lock()
	if r.refs == 0 {
		e.localMu.Unlock()
		return status.Errorf(status.ErrNotFound, "deregister: region %#x was deregistered before", id)
	}
	r.refs--
	if r.refs > 0 {
		e.localMu.Unlock()
		return nil
	}
	delete(e.local, r.Range)
	holders := make([]*target, 0, len(r.holders))
	for t := range r.holders {
		holders = append(holders, t)
	}
	e.localMu.Unlock()

	deadline := time.Now().Add(e.opt.CancelTimeout)
	answers := make([]<-chan struct{}, len(holders))
	for i, t := range holders {
		answers[i] = t.revoke(r)
	}
	r.core.SetLive(false)
	e.endTransfers(func(t *transfer) bool { return t.uses(r) }, deadline, "its local memory was deregistered")
	for i, t := range holders {
		t.awaitRevoked(answers[i], deadline)
	}
	e.deregisterRails(r)
	r.closed.Store(true)
	e.regions.unpin(r)
	return nil
}

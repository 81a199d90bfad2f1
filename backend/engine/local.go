package engine

import (
	"errors"
	"slices"
	"time"

	"gorail/backend/status"
	"gorail/backend/wire"
)

// Register makes a local range usable. Ranges may repeat and overlap; exactly the same range is the same region. A rail
// that refuses host memory does not fail the call (a refused first registration would poison the agent's metadata for
// every peer): transfers over such a region fail with the rail's reason. What cannot be memory at all is refused, see checkRange.
func (e *Engine) Register(addr, length, dev uint64, mem int32, _ []byte) (uint64, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if !e.enter() { // Close waits for us
		return 0, status.Errorf(status.ErrBackend, "%w", errClosing)
	}
	defer e.leave()
	rng := wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem}
	if err := checkRange(rng); err != nil {
		return 0, e.adviseRefused(mem, err)
	}
	r, fresh, err := e.enterLocal(rng)
	if err != nil {
		return 0, err
	}
	for _, f := range fresh {
		e.fill(f)
	}
	<-r.ready
	if mem == memVRAM && len(fresh) == 0 && e.regions.refused(r) == nil {
		e.refresh(r)
	}
	if why := e.regions.refused(r); mem == memVRAM && why != nil {
		return 0, e.adviseRefused(mem, e.refuse(r, why))
	}
	return r.id, nil
}

// fill registers a region that was just entered.
func (e *Engine) fill(r *region) {
	defer close(r.ready)
	if r.parts != nil {
		for _, p := range r.parts {
			if <-p.ready; r.mrErr == nil {
				r.mrErr = p.mrErr
			}
		}
		return
	}
	e.registerRails(r)
	e.railSet.News()
	if r.Mem != memVRAM {
		e.nearNode(r) // pinned pages are there now
	}
	r.core.SetLive(true)
}

// enterLocal finds or enters the region of a range; fresh are those that the caller has to fill, in this order, without
// localMu, which deregistrations and peers that ask for keys want meanwhile.
func (e *Engine) enterLocal(rng wire.Range) (r *region, fresh []*region, err error) {
	e.localMu.Lock()
	defer e.localMu.Unlock()
	return e.enterSliced(rng)
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
// and drained, and only then the memory is let go. An error of a rail's says that the memory may still be in use; the registration has
// ended all the same. Implements deregisterMem; the agent ignores the status.
func (e *Engine) Deregister(id uint64) (err error) {
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
	gone := e.leaveLocal(r)
	holders := map[*target][]uint64{}
	for _, g := range gone {
		for t := range g.holders {
			holders[t] = append(holders[t], g.id)
		}
	}
	e.localMu.Unlock()

	if left := e.takeBack(gone, holders, "its local memory was deregistered"); left != nil {
		err = status.Errorf(status.ErrBackend, "deregister %#x+%d: %w", r.Addr, r.Len, left)
	}
	for _, g := range gone {
		if left := e.deregisterRails(g); left != nil {
			err = errors.Join(err, status.Errorf(status.ErrBackend, "deregister %#x+%d: %w", g.Addr, g.Len, left))
		}
		g.closed.Store(true)
		e.regions.unpin(g)
	}
	return err
}

// takeBack ends all use of regions: peers that hold their keys are told and waited for, our own transfers are aborted and drained. An error:
// their memory may still be in use.
func (e *Engine) takeBack(gone []*region, holders map[*target][]uint64, why string) error {
	deadline := time.Now().Add(e.opt.CancelTimeout)
	answers := map[*target]<-chan struct{}{}
	for t, ids := range holders {
		answers[t] = t.revoke(ids)
	}
	for _, g := range gone {
		g.core.SetLive(false)
	}
	e.endTransfers(func(t *transfer) bool { return slices.ContainsFunc(gone, t.uses) }, deadline, why)
	for t, answer := range answers {
		t.awaitRevoked(answer, deadline)
	}
	return e.awaitCopies(gone, deadline)
}

package region

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// fillAfter is how long a region may wait for Settle. Applications register many regions in a row, and their peers need the first one
// milliseconds later.
const fillAfter = time.Millisecond

// RegisterSoon is Register for a caller that does not use the region's rails. Whoever does calls Settle first.
func (m *Registry) RegisterSoon(rng wire.Range, peers option.Rights) (*Region, error) {
	soon := m.mayWait(rng)
	r, err := m.register(rng, peers, soon)
	if soon && err == nil && m.unready.Load() > 0 && m.armed.CompareAndSwap(false, true) {
		m.After(fillAfter, func() {
			m.armed.Store(false)
			m.Settle()
		})
	}
	return r, err
}

// mayWait reports that all rails take a range as well later.
func (m *Registry) mayWait(rng wire.Range) bool {
	if m.After == nil || rng.Mem != DRAM {
		return false
	}
	for _, rl := range m.set.List {
		if !rl.Opened() || rl.Idle() { // FillRail registers the range, or the rail is like others that are open
			continue
		}
		if !rl.Inner().Later(rng.Addr, rng.Len) {
			return false
		}
	}
	return true
}

// Settle registers the waiting regions on the rails. It returns when all regions that were entered before have been tried. The
// caller holds no lock of the Registry.
func (m *Registry) Settle() {
	if m.unready.Load() == 0 {
		return
	}
	m.filling.Lock()
	defer m.filling.Unlock()
	m.mu.Lock()
	list := m.list
	m.list = m.empty
	m.mu.Unlock()
	for i, r := range list {
		m.fill(r)
		list[i] = nil
	}
	m.unready.Add(-int32(len(list)))
	m.empty = list[:0]
}

// later holds the regions that no rail has been asked about. The application is not kept waiting for what cannot fail its
// registration.
type later struct {
	After func(d time.Duration, f func()) // calls f after d; nil: no region waits
	armed atomic.Bool                     // After was called, and f was not

	filling sync.Mutex   // held while regions are filled. Taken before Registry.mu and the rails' locks
	unready atomic.Int32 // regions that wait or are being filled

	list  []*Region // under Registry.mu
	empty []*Region // the memory of the list before; under filling
}

// add adds a region. Registry.mu is held.
func (l *later) add(r *Region) {
	l.list = append(l.list, r)
	l.unready.Add(1)
}

// FillRail registers all local host memory on a rail that has just been opened. It fails only if ctx ends first: the engine
// closes.
func (m *Registry) FillRail(ctx context.Context, r *rails.Rail) error {
	all := m.All()
	m.Settle()
	for _, g := range all {
		if g.ready != nil { // nil: Settle has filled the region
			select {
			case <-g.ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if m.lacks(g, r) && m.takes(r, g) {
			m.registerOn(g, r)
		}
	}
	return nil
}

// lacks reports that a region of host memory is registered, and not on that rail.
func (m *Registry) lacks(g *Region, r *rails.Rail) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return g.refs > 0 && g.Slices == nil && g.Mem == DRAM && g.mrs[r.Index] == nil
}

// registerOn registers one region on one more rail. Only users of that rail read the entries that it writes. Pinning may take seconds: nothing is
// locked meanwhile, and the region's registration may end.
func (m *Registry) registerOn(g *Region, r *rails.Rail) {
	cache := r.Cache(g.Access)
	ref, _, err := cache.Acquire(g.Addr, g.Len)
	if err != nil {
		m.notOn(r, g, err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.refs == 0 {
		if _, err := cache.Release(ref); err != nil {
			m.log.Warn("closing a memory region failed", "rail", r.Name(), "err", err)
		}
		return
	}
	g.mrs[r.Index] = ref
	key := core.Key{}
	if m, has := ref.Handle(); has {
		key.Desc = m.Desc()
	}
	g.Core.SetKey(r.Index, key)
	g.Rails.Or(1 << r.Index)
}

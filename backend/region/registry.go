package region

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// Registry is the memory that this side has registered, by range. Its methods may be called from any thread; none is called with mu held.
type Registry struct {
	opt     option.Options
	log     *slog.Logger
	core    *core.Core
	set     *rails.Set
	copier  copier
	users   Users
	Slice   uint64 // regions of more bytes are registered as several; 0: none is
	Regions Table

	Flushes atomic.Bool // a READ has ended when its check says so, which makes a GPU see it

	renewMu sync.Mutex // before all others: one region at a time is registered anew
	mu      sync.Mutex
	local   map[wire.Range]*Region
}

// Holder is a session of a peer that has keys of ours.
type Holder interface {
	// Revoke tells the peer that regions go away; the channel closes with its answer.
	Revoke(regions []uint64) <-chan struct{}
	// AwaitRevoked waits for the answer until the deadline; a peer that does not answer loses its endpoint.
	AwaitRevoked(done <-chan struct{}, deadline time.Time)
}

// Users is who has transfers over regions.
type Users interface {
	// EndTransfers aborts those over regions that go away, and waits until they use no memory of ours; after the deadline their endpoints are closed.
	EndTransfers(gone []*Region, deadline time.Time, why string)
}

// copier copies memory of GPUs.
type copier interface {
	Check(addr, length uint64, device int) error
	Pin(addr, length uint64) error
	Unpin(addr, length uint64) error
}

// NewRegistry has no region. The rails are open.
func NewRegistry(opt option.Options, log *slog.Logger, c *core.Core, set *rails.Set, gpus copier, u Users) *Registry {
	m := &Registry{opt: opt, log: log, core: c, set: set, copier: gpus, users: u, Regions: Table{core: c, slots: core.Slots(opt.MaxRails)},
		local: map[wire.Range]*Region{}}
	m.Slice = m.sliceSize()
	return m
}

// KeysFor gives the keys of ranges, and notes that the peer has them, unless its session is closing.
func (m *Registry) KeysFor(ranges []wire.Range, to Holder, closing *atomic.Bool) []wire.KeyEntry {
	entries := make([]wire.KeyEntry, len(ranges))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, rng := range ranges {
		r := m.local[rng]
		if r == nil || closing.Load() || !r.registered() || r.stale {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Rails: r.RailKeys()}
		r.holders[to] = struct{}{}
	}
	return entries
}

// DropHolder notes that a peer has no key any more.
func (m *Registry) DropHolder(h Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.local {
		delete(r.holders, h)
	}
}

// Known says whether a range lies inside a region.
func (m *Registry) Known(rng wire.Range) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for own, r := range m.local {
		if own.Dev == rng.Dev && own.Mem == rng.Mem && r.Contains(rng.Addr, rng.Len) {
			return true
		}
	}
	return false
}

// Find is the region of exactly a range; nil: there is none.
func (m *Registry) Find(rng wire.Range) *Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.local[rng]
}

// Pause holds up whoever looks for regions, such as peers that ask for keys, until resume is called.
func (m *Registry) Pause() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// All are the regions that are there.
func (m *Registry) All() []*Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.local))
}

// sliceSize is the most bytes that are registered as one; 0: any.
func (m *Registry) sliceSize() uint64 {
	most := m.opt.MRMax
	for _, r := range m.set.List {
		if own := r.Can.MaxMR; m.opt.MRMax == 0 && own > 0 && (most == 0 || own < most) {
			most = own
		}
	}
	if most == 0 {
		return 0
	}
	return max(most-most%wire.SliceUnit, wire.MinSlice)
}

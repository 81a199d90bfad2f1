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

// Registry holds the local registrations, by range. Its methods are safe for concurrent use. No method may be called with mu
// held.
type Registry struct {
	opt     option.Options
	log     *slog.Logger
	core    *core.Core
	set     *rails.Set
	copier  copier
	users   Users
	Slice   uint64 // larger ranges are registered in slices of at most this size; 0: never
	Regions Table

	Flushes atomic.Bool // a READ must be checked for its end: that check flushes device writes to the GPU

	renewMu sync.Mutex // taken before all other locks: one region at a time is registered again
	mu      sync.Mutex
	local   map[wire.Range]*Region
}

// Holder is a session of a peer that holds our keys.
type Holder interface {
	// Revoke revokes the peer's keys of regions. The channel closes with the peer's answer.
	Revoke(regions []uint64) <-chan struct{}
	// AwaitRevoked waits for the answer until the deadline. Without an answer, the peer's endpoint is closed.
	AwaitRevoked(done <-chan struct{}, deadline time.Time)
}

// Users ends transfers over regions.
type Users interface {
	// EndTransfers aborts the transfers over deregistered regions and waits until they no longer use local memory. After the
	// deadline their endpoints are closed.
	EndTransfers(gone []*Region, deadline time.Time, why string)
}

// copier copies GPU memory.
type copier interface {
	Check(addr, length uint64, device int) error
	Pin(addr, length uint64) error
	Unpin(addr, length uint64) error
}

// NewRegistry makes an empty registry. The rails must be open.
func NewRegistry(opt option.Options, log *slog.Logger, c *core.Core, set *rails.Set, gpus copier, u Users) *Registry {
	m := &Registry{opt: opt, log: log, core: c, set: set, copier: gpus, users: u, Regions: Table{core: c, slots: core.Slots(opt.MaxRails)},
		local: map[wire.Range]*Region{}}
	m.Slice = m.sliceSize()
	return m
}

// KeysFor returns the keys of ranges and records the peer as their holder, unless its session is closing.
func (m *Registry) KeysFor(ranges []wire.Range, to Holder, closing *atomic.Bool) []wire.KeyEntry {
	entries := make([]wire.KeyEntry, len(ranges))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, rng := range ranges {
		r := m.local[rng]
		if r == nil || closing.Load() || !r.registered() || r.stale {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Access: r.Access, Rails: r.RailKeys()}
		r.holders[to] = struct{}{}
	}
	return entries
}

// DropHolder records that a peer no longer holds keys.
func (m *Registry) DropHolder(h Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.local {
		delete(r.holders, h)
	}
}

// Known reports whether a range lies inside a local region.
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

// Find returns the region of exactly that range; nil: none.
func (m *Registry) Find(rng wire.Range) *Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.local[rng]
}

// Pause blocks all lookups, such as key requests of peers, until resume is called.
func (m *Registry) Pause() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// All returns all local regions.
func (m *Registry) All() []*Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.local))
}

// sliceSize returns the largest range that is registered as one region; 0: no limit.
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

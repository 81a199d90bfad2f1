package region

import (
	"crypto/rand"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// Registry holds the local registrations, by range. Its methods are safe for concurrent use. No method may be called with mu
// held.
type Registry struct {
	opt          option.Options
	log          *slog.Logger
	core         *core.Core
	set          *rails.Set
	gpu          GPU
	vram         *rails.Cache[provider.MR] // of memory of GPUs
	endTransfers EndTransfers
	Slice        uint64 // larger ranges are registered in slices of at most this size; 0: never
	Regions      Table

	kinds
	Flushes atomic.Bool // a READ must be checked for its end: that check flushes device writes to the GPU

	renewals renewals
	later
	answers

	mu      sync.Mutex
	caps    *wire.CapMaker
	local   map[wire.Range]*Region   // registrations
	slices  map[wire.Range][]*Region // their slices; overlapping registrations may have equal ones
	holders *holders
	slab    Slab
}

// kinds are the kinds of memory that were registered.
type kinds struct {
	HasVRAM  atomic.Bool   // memory of a GPU
	HasLent  atomic.Bool   // host memory that is lent over NVLink
	GPURails atomic.Uint64 // bit mask of rails that have taken memory of a GPU
}

// answers holds what answers to peers' claims need besides the regions.
type answers struct {
	refused    atomic.Uint64 // claims that lacked the capability
	destructor destructor
}

// EndTransfers aborts the transfers over regions and waits until they no longer use local memory. After the deadline their endpoints
// are closed. Where regions are Closed and others have their memory, transfers go on over those.
type EndTransfers func(gone []*Region, deadline time.Time, why string)

// GPU is what a registry asks the driver of GPUs: functions of staging.Copier.
type GPU struct {
	Registering func(addr, length uint64) (end func()) // rails and Check ask the driver about the range once until end
	Check       func(addr, length uint64, device int) error
	Identity    func(addr, length uint64) uint64 // of what is mapped there; 0: not all of it is
	Pin, Unpin  func(addr, length uint64) error
	Address     func(device int) string // on the PCI bus; "": unknown
}

// NewRegistry makes an empty registry. The rails must be open.
func NewRegistry(opt option.Options, log *slog.Logger, c *core.Core, set *rails.Set, driver GPU, end EndTransfers) *Registry {
	m := &Registry{opt: opt, log: log, core: c, set: set, gpu: driver, endTransfers: end, Regions: Table{core: c, slots: set.Slots},
		renewals: renewals{wanted: make(chan struct{}, 1)}, local: map[wire.Range]*Region{}, slices: map[wire.Range][]*Region{}, holders: newHolders()}
	m.vram = rails.NewCache(nil, provider.MR.Close, rails.Alone)
	var secret wire.CapSecret
	rand.Read(secret[:])
	m.caps = secret.Maker()
	m.Slice = m.sliceSize()
	return m
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

// Find returns the region of exactly that range and capability; nil: none.
func (m *Registry) Find(c wire.Claim) *Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.claimed(c)
}

// claimed returns the registration, or the slice of one, that a claim names; nil: none. It counts claims that lack the
// capability of registered memory. Under mu.
func (m *Registry) claimed(c wire.Claim) *Region {
	r := m.named(c)
	if r == nil && (m.local[c.Range] != nil || m.slices[c.Range] != nil) {
		m.refused.Add(1)
	}
	return r
}

// named is claimed without the count. Under mu.
func (m *Registry) named(c wire.Claim) *Region {
	if r := m.local[c.Range]; r != nil && r.Cap.Equal(c.Cap) {
		return r
	}
	for _, p := range m.slices[c.Range] {
		if p.Cap.Equal(c.Cap) {
			return p
		}
	}
	return nil
}

// CapsRefused counts the claims of registered memory that lacked its capability.
func (m *Registry) CapsRefused() uint64 { return m.refused.Load() }

// Pause blocks all lookups, such as key requests of peers, until resume is called.
func (m *Registry) Pause() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// All returns all local regions.
func (m *Registry) All() []*Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(m.each())
}

// each yields all registrations and their slices. Under mu.
func (m *Registry) each() iter.Seq[*Region] {
	return func(yield func(*Region) bool) {
		for _, r := range m.local {
			if !yield(r) {
				return
			}
			for _, p := range r.Slices {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// sliceSize returns the largest range that is registered as one region; 0: no limit.
func (m *Registry) sliceSize() uint64 {
	most := m.opt.MRMax
	for _, r := range m.set.List {
		if own := r.Can().MaxMR; m.opt.MRMax == 0 && own > 0 && (most == 0 || own < most) {
			most = own
		}
	}
	if most == 0 {
		return 0
	}
	return max(most-most%wire.SliceUnit, wire.MinSlice)
}

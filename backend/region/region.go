package region

import (
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// Memory types (nixl_mem_t).
const (
	DRAM = 0
	VRAM = 1
)

// Region is a registered range: local (Peer == nil) or a peer's. Its id is {generation, index}. The index is its place in the
// core's region table, and stays taken while a transfer pins the region.
type Region struct {
	ID   uint64
	Core core.Region
	wire.Claim
	Peer   any       // the session that loaded it; nil: a local region
	Slices []*Region // if registered in slices: they are regions themselves, and this one only names them; otherwise nil
	Slice  uint64    // largest size of a slice, in bytes

	Pins   atomic.Int32  // transfers that use the region, plus one while registered or loaded
	Anew   atomic.Bool   // a peer's region, whose new keys we ask for: the peer has other memory there
	Back   atomic.Uint32 // how often they have come
	Closed atomic.Bool   // local: it is being deregistered, or was; a peer's: unloaded

	Access option.Rights // of peers; of a peer's region: ours, valid while Keyed
	Rails  atomic.Uint64 // bit mask; local region: own rails that have it; peer's region: the peer's rails with keys

	registration
	Keys
}

// registration holds the fields of a local region. Registry.mu guards copies, copiesEnd, adopted and refs. The other fields, except
// pinned and pinErr, are written before filled is set. Later, registerOn (mrs) and adopt (mrs, near, sleep)
// write them under Registry.mu.
type registration struct {
	filled    atomic.Bool   // all rails have been tried
	ready     chan struct{} // closed then; nil: Registry.Settle tries the rails
	mrs       []*rails.Ref[provider.MR]
	Refused   error         // why no rail has the region
	near      atomic.Uint64 // bit mask of own rails near the memory; 0: no rail is nearer than the others, or distances are unknown. Posts read it
	copies    int           // copies in progress that staging makes of the memory
	copiesEnd time.Time     // until when deregistrations wait for those; zero: none has waited
	sleep     *sleeper      // other memory is there, or none: no rail has the memory, and staging checks each copy; nil: the region is awake
	adopted   uint32        // counts new registrations
	refs      int           // registrations of exactly this range; 1 for a slice, until its registration ends

	pinMu  sync.Mutex
	pinned bool  // pinned for GPU copies; under pinMu, like pinErr
	pinErr error // why pinning failed
}

// Keys holds the fields of a peer's region. The lock of its session guards them. Fields that posts read are written under the
// lock of transfer.Peer, too.
type Keys struct {
	Keyed    bool   // the keys are in the core's table
	Asked    bool   // a request for the keys is in progress
	Again    bool   // with Asked: a transfer was posted since, and the answer may be older than what it needs
	More     uint64 // bit mask, with Asked: rails of the peer whose keys the answer may be too old to have
	Wanted   bool   // the keys are to be requested with low priority
	Unknown  bool   // the peer has no such registration, or none on a rail in use
	Why      string // reason of Unknown, for the error
	Stays    bool   // with Unknown: the peer's agent is not being destroyed
	TargetID uint64 // region id at the peer
	Uses     int    // loads of exactly this range; 1 for a slice, until its range is unloaded
}

// Slab allocates regions, several at a time, because applications register and load thousands in a row. The memory of a slab lives as
// long as one of its regions. The zero value is ready; the owner's lock guards it.
type Slab struct {
	left []Region
	size int // of the last slab
}

// mostSlab is the number of regions in the largest slab, 10 KiB. An owner's first slabs are smaller, because most owners have few regions.
const mostSlab = 32

// New returns a region without a range.
func (s *Slab) New() *Region {
	if len(s.left) == 0 {
		s.size = min(2*s.size+1, mostSlab)
		s.left = make([]Region, s.size)
	}
	r := &s.left[0]
	s.left = s.left[1:]
	return r
}

// Registrations counts the registrations of exactly this range.
func (r *Region) Registrations(m *Registry) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return r.refs
}

// onGPU returns the registration of GPU memory on a rail that reaches GPU memory directly; otherwise nil.
func (r *Region) onGPU(rail int) provider.GPUMemory {
	if r.mrs[rail] == nil {
		return nil
	}
	m, _ := r.mrs[rail].Handle()
	g, _ := m.(provider.GPUMemory)
	return g
}

func Index(id uint64) uint32 { return uint32(id) }

func Indices(list []*Region) []uint32 {
	out := make([]uint32, len(list))
	for i, g := range list {
		out[i] = Index(g.ID)
	}
	return out
}

// Contains reports whether [addr, addr+length) lies inside the region. Overflow-safe.
func (r *Region) Contains(addr, length uint64) bool {
	return addr >= r.Addr && length <= r.Len && addr-r.Addr <= r.Len-length
}

// Table allocates indices of the core's region table.
type Table struct {
	core  *core.Core
	slots int           // key slots of an entry
	Ended atomic.Uint64 // counts local regions whose registration ends or has ended

	mu    sync.RWMutex
	tab   []*Region
	gens  []uint32
	free  []uint32
	cores []core.Region // the core's entries of tab, and of a few indices more
}

// Add adds a region with one pin, which belongs to the owner.
func (t *Table) Add(r *Region) error {
	if err := t.reserve(r); err != nil {
		return err
	}
	t.prepare(r)
	return nil
}

// reserve is Add without prepare, which must follow before the region is used.
func (t *Table) reserve(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var idx uint32
	if n := len(t.free); n > 0 {
		idx = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		idx = uint32(len(t.tab))
		if int(idx) == len(t.cores) {
			var err error
			if t.cores, err = t.core.Regions(t.cores); err != nil {
				return errcode.NoRegionEntry.Errorf("%w", err)
			}
		}
		t.tab = append(t.tab, nil)
		t.gens = append(t.gens, 0)
	}
	t.gens[idx]++
	r.ID = uint64(t.gens[idx])<<32 | uint64(idx)
	r.Core = t.cores[idx]
	r.Pins.Store(1)
	t.tab[idx] = r
	return nil
}

// prepare fills the core's entry of a region. It has no keys and is not live.
func (t *Table) prepare(r *Region) { r.Core.Set(r.Addr, r.Len, t.slots) }

// View locks the table for reading, for a series of calls of At. The caller calls end afterwards.
func (t *Table) View() (end func()) {
	t.mu.RLock()
	return t.mu.RUnlock
}

// Len is the number of indices in use.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.tab) - len(t.free)
}

// Get returns the region with that id; nil: none. For many lookups, use View and At.
func (t *Table) Get(id uint64) *Region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.At(id)
}

// At is Get while View is held.
func (t *Table) At(id uint64) *Region {
	idx := Index(id)
	if int(idx) >= len(t.tab) {
		return nil
	}
	if r := t.tab[idx]; r != nil && r.ID == id {
		return r
	}
	return nil
}

// Refusal returns why no rail has a local region.
func (t *Table) Refusal(r *Region) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return r.Refused
}

// Pin adds a use. False: all uses have ended, and the region is going away.
func (r *Region) Pin() bool {
	for {
		n := r.Pins.Load()
		if n == 0 {
			return false
		}
		if r.Pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Unpin ends one use. The last one frees the index.
func (t *Table) Unpin(r *Region) {
	if r.Pins.Add(-1) != 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tab[Index(r.ID)] = nil
	t.free = append(t.free, Index(r.ID))
}

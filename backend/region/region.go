// Package region is memory as an engine knows it: the table of regions that the core reads, what this side has registered on its rails, in
// slices where it is large, and who has its keys. Regions of peers are in the same table; their sessions fill them in.
package region

import (
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// Memory types (nixl_mem_t).
const (
	DRAM = 0
	VRAM = 1
)

// Region is a registered range: ours (peer == nil) or a peer's. Its id is {generation, index}; the index is its place
// in the core's region table and stays taken while a transfer pins it.
type Region struct {
	ID   uint64
	Core core.Region
	wire.Range
	Peer  any       // the session that it was loaded for; nil: ours
	Parts []*Region // of one that is registered in slices: these are regions, it is only their name; else nil
	Slice uint64    // the most bytes of a part

	Pins   atomic.Int32 // transfers that name it, plus one while it is registered or loaded
	Closed atomic.Bool

	Rails atomic.Uint64 // bits: own rails that have it; a peer's region: the peer's rails that it is keyed on

	registration
	Keys
}

// registration is what a region of ours has besides. copies, stale, refs and holders are guarded by Registry.mu, the rest is written before ready is
// closed, but for pinned and pinErr.
type registration struct {
	ready   chan struct{} // closed when the rails have answered
	mrs     []*mr.Ref[provider.MR]
	vram    []*mr.Cache[provider.MR] // of a GPU's memory: what mrs are of; else the rails' own
	Refused error                    // why no rail has it; registered anew it is written under Table.mu, too
	near    uint64                   // bits: own rails that are near the memory; 0: none is nearer than others, or nobody knows
	copies  int                      // that peers have us make of it now
	stale   bool                     // it is being registered anew: no keys are given
	refs    int                      // registrations of exactly this range, and of those that have it for a part
	holders map[Holder]struct{}

	pinMu  sync.Mutex
	pinned bool  // for copies of GPUs; under pinMu, as pinErr
	pinErr error // why it can't be
}

// Keys is what a peer's region has besides. Guarded by its session's lock; what posts read is written with that of transfer.Peer, too.
type Keys struct {
	Keyed    bool   // keys are in the core's table
	Asked    bool   // a request for them is under way
	Wanted   bool   // it is among those whose keys are asked for when there is time
	Unknown  bool   // the peer says that it has no such registration, or has it on no rail in use
	Why      string // unknown: for the error
	TargetID uint64 // the peer's number of it
	Uses     int    // loads of exactly this range, and of those that have it for a part
}

// Registrations is how many registrations a region of ours has, of exactly its range or of one that has it for a part.
func (r *Region) Registrations(m *Registry) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return r.refs
}

// registered says that the rails have answered.
func (r *Region) registered() bool {
	select {
	case <-r.ready:
		return true
	default:
		return false
	}
}

// onGPU is the registration of a GPU's memory on a rail that reaches it by itself, else nil.
func (r *Region) onGPU(rail int) provider.GPUMemory {
	if r.mrs[rail] == nil {
		return nil
	}
	m, _ := r.mrs[rail].Handle()
	g, _ := m.(provider.GPUMemory)
	return g
}

// cacheOf is where a region is registered on a rail.
func (r *Region) cacheOf(rl *rails.Rail) *mr.Cache[provider.MR] {
	if r.vram != nil {
		return r.vram[rl.Index]
	}
	return rl.Cache
}

// RailKeys are the keys that a peer needs for a region of ours.
func (r *Region) RailKeys() []wire.RailKey {
	var keys []wire.RailKey
	for i, ref := range r.mrs {
		if ref == nil {
			continue
		}
		if m, has := ref.Handle(); has {
			base, _ := ref.Range()
			keys = append(keys, wire.RailKey{Rail: uint8(i), Key: m.Key(), Base: m.Base() + (r.Addr - base)})
		}
	}
	return keys
}

func Index(id uint64) uint32 { return uint32(id) }

func Indices(list []*Region) []uint32 {
	out := make([]uint32, len(list))
	for i, g := range list {
		out[i] = Index(g.ID)
	}
	return out
}

// Contains says whether [addr, addr+length) lies inside; no overflow.
func (r *Region) Contains(addr, length uint64) bool {
	return addr >= r.Addr && length <= r.Len && addr-r.Addr <= r.Len-length
}

// Table gives out indices of the core's region table.
type Table struct {
	core  *core.Core
	slots int // key slots of an entry

	mu   sync.RWMutex
	tab  []*Region
	gens []uint32
	free []uint32
}

// Add enters a region with one pin, the owner's.
func (t *Table) Add(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var idx uint32
	if n := len(t.free); n > 0 {
		idx = t.free[n-1]
	} else {
		idx = uint32(len(t.tab))
	}
	c, err := t.core.Region(idx)
	if err != nil {
		return status.Errorf(status.ErrBackend, "%w", err)
	}
	if int(idx) == len(t.tab) {
		t.tab = append(t.tab, nil)
		t.gens = append(t.gens, 0)
	} else {
		t.free = t.free[:len(t.free)-1]
	}
	t.gens[idx]++
	r.ID = uint64(t.gens[idx])<<32 | uint64(idx)
	r.Core = c
	r.Core.Set(r.Addr, r.Len, t.slots)
	r.Pins.Store(1)
	t.tab[idx] = r
	return nil
}

// View is called before the look-ups of one that makes many by at, and what it gives after them.
func (t *Table) View() (end func()) {
	t.mu.RLock()
	return t.mu.RUnlock
}

// Len is the number of indices that were given out.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.tab) - len(t.free)
}

// Get finds a region by id; nil when there is none. Callers that look up many use view and at.
func (t *Table) Get(id uint64) *Region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.At(id)
}

// At is get within view.
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

// Refusal is why no rail has a region of ours.
func (t *Table) Refusal(r *Region) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return r.Refused
}

// Pin adds a use; false: the last one has ended, the region is going away.
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

// Unpin ends one use; the index is free again after the last.
func (t *Table) Unpin(r *Region) {
	if r.Pins.Add(-1) != 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tab[Index(r.ID)] = nil
	t.free = append(t.free, Index(r.ID))
}

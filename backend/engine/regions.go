package engine

import (
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// region is a registered range: ours (remote == nil) or a peer's. Its id is {generation, index}; the index is its place
// in the core's region table and stays taken while a transfer pins it.
type region struct {
	id   uint64
	core core.Region
	wire.Range
	remote *remote
	parts  []*region // of one that is registered in slices: these are regions, it is only their name; else nil
	slice  uint64    // the most bytes of a part

	pins   atomic.Int32 // transfers that name it, plus one while it is registered or loaded
	closed atomic.Bool

	rails atomic.Uint64 // bits: own rails that have it; a peer's region: the peer's rails that it is keyed on

	// ours; refs and holders are guarded by Engine.localMu, the rest is written before ready is closed
	ready   chan struct{} // closed when the rails have answered
	mrs     []*mr.Ref[provider.MR]
	vram    []*mr.Cache[provider.MR] // of a GPU's memory: what mrs are of; else the rails' own
	mrErr   error                    // why no rail has it; registered anew it is written under regionTable.mu, too
	near    uint64                   // bits: own rails that are near the memory; 0: none is nearer than others, or nobody knows
	pinMu   sync.Mutex
	pinned  bool  // for copies of GPUs; under pinMu, as pinErr
	pinErr  error // why it can't be
	copies  int   // that peers have us make of it now; guarded by Engine.localMu
	stale   bool  // it is being registered anew: no keys are given
	refs    int   // registrations of exactly this range, and of those that have it for a part
	holders map[*target]struct{}

	// a peer's; guarded by remote.mu
	keyed    bool   // keys are in the core's table
	asked    bool   // a request for them is under way
	wanted   bool   // it is in remote.wanted
	unknown  bool   // the peer says that it has no such registration, or has it on no rail in use
	why      string // unknown: for the error
	targetID uint64 // the peer's number of it
}

// registered says that the rails have answered.
func (r *region) registered() bool {
	select {
	case <-r.ready:
		return true
	default:
		return false
	}
}

func index(id uint64) uint32 { return uint32(id) }

// contains says whether [addr, addr+length) lies inside; no overflow.
func (r *region) contains(addr, length uint64) bool {
	return addr >= r.Addr && length <= r.Len && addr-r.Addr <= r.Len-length
}

// regionTable gives out indices of the core's region table.
type regionTable struct {
	core  *core.Core
	slots int // key slots of an entry

	mu   sync.RWMutex
	tab  []*region
	gens []uint32
	free []uint32
}

// add enters a region with one pin, the owner's.
func (t *regionTable) add(r *region) error {
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
	r.id = uint64(t.gens[idx])<<32 | uint64(idx)
	r.core = c
	r.core.Set(r.Addr, r.Len, t.slots)
	r.pins.Store(1)
	t.tab[idx] = r
	return nil
}

// get finds a region by id; nil when there is none. Callers that look up many hold mu for reading and use at.
func (t *regionTable) get(id uint64) *region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.at(id)
}

func (t *regionTable) at(id uint64) *region {
	idx := index(id)
	if int(idx) >= len(t.tab) {
		return nil
	}
	if r := t.tab[idx]; r != nil && r.id == id {
		return r
	}
	return nil
}

// refused is why no rail has a region of ours.
func (t *regionTable) refused(r *region) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return r.mrErr
}

// pin adds a use; false: the last one has ended, the region is going away.
func (r *region) pin() bool {
	for {
		n := r.pins.Load()
		if n == 0 {
			return false
		}
		if r.pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unpin ends one use; the index is free again after the last.
func (t *regionTable) unpin(r *region) {
	if r.pins.Add(-1) != 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tab[index(r.id)] = nil
	t.free = append(t.free, index(r.id))
}

package shm

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/provider/vram"
)

// entry is a region as peers see it: cma_entry. generation is odd while the region is there; a key is generation << 32 | index.
type entry struct{ generation, base, length, share atomic.Uint64 }

// shareTable is what peers need to map regions of GPUs: cma_shares.
type shareTable struct {
	nameLen uint8 // of the socket that gives descriptors of VMM memory; written before the first share that wants them
	name    [ipc.MaxName]byte
	token   descriptors.Token
	share   [cma.MaxShares]gpu.Share
}

// What Go and C have of what peers read is the same.
var (
	_ [cma.EntrySize - unsafe.Sizeof(entry{})]byte
	_ [unsafe.Sizeof(entry{}) - cma.EntrySize]byte
	_ [cma.SharesSize - unsafe.Sizeof(shareTable{})]byte
	_ [unsafe.Sizeof(shareTable{}) - cma.SharesSize]byte
	_ [unsafe.Offsetof(shareTable{}.share) - cma.SharesAt]byte
)

// table is the regions of a rail. Peers read it as it is; copies look at it without the lock.
type table struct {
	entries []entry     // shared memory, the core's to unmap
	shares  *shareTable // likewise

	mu         sync.Mutex
	open       int
	used       uint32 // entries that were used, ever
	free       []uint32
	usedShares uint32
	freeShares []uint32
	mem        map[uint32]vram.Memory // of regions of GPUs, by their shares
}

func newTable(entries, shares unsafe.Pointer) *table {
	return &table{entries: unsafe.Slice((*entry)(entries), cma.MaxRegions), shares: (*shareTable)(shares), mem: map[uint32]vram.Memory{}}
}

// put enters a region; share and mem are of a GPU's memory, else nil. ENOSPC: there is no room.
func (t *table) put(base, length uint64, share *gpu.Share, mem *vram.Memory) (key uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 && t.used == cma.MaxRegions || share != nil && len(t.freeShares) == 0 && t.usedShares == cma.MaxShares {
		return 0, unix.ENOSPC
	}
	place := uint64(0)
	if share != nil {
		p := pop(&t.freeShares, &t.usedShares)
		t.shares.share[p], t.mem[p] = *share, *mem
		place = uint64(p) + 1
	}
	index := pop(&t.free, &t.used)
	e := &t.entries[index]
	generation := e.generation.Load() + 1
	e.base.Store(base)
	e.length.Store(length)
	e.share.Store(place)
	e.generation.Store(generation) // behind what it is of
	t.open++
	return generation<<32 | uint64(index), nil
}

// pop is a number that is free, or the next that was never used.
func pop(free *[]uint32, used *uint32) uint32 {
	if n := len(*free); n > 0 {
		last := (*free)[n-1]
		*free = (*free)[:n-1]
		return last
	}
	*used++
	return *used - 1
}

// revoke ends a region's key; copies may be under way that have looked at it before.
func (t *table) revoke(key uint64) { t.entries[uint32(key)].generation.Add(1) }

// release frees what a region had that was revoked.
func (t *table) release(key uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.entries[uint32(key)]
	if place := e.share.Load(); place != 0 {
		t.freeShares = append(t.freeShares, uint32(place)-1)
		delete(t.mem, uint32(place)-1)
	}
	if e.generation.Load() < 1<<32-2 { // 31 bits of a key are the generation; an entry that has used them up is not used again
		t.free = append(t.free, uint32(key))
	}
	t.open--
}

// busy says whether regions are there.
func (t *table) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open > 0
}

// memory is a region's, as long as that is registered.
func (t *table) memory(key uint64) (m vram.Memory, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uint32(key) >= t.used || key>>32&1 == 0 || t.entries[uint32(key)].generation.Load() != key>>32 {
		return m, false
	}
	place := t.entries[uint32(key)].share.Load()
	if place == 0 {
		return m, false
	}
	m, ok = t.mem[uint32(place)-1]
	return m, ok
}

// serveAt tells peers where descriptors of VMM memory are to be had.
func (t *table) serveAt(name []byte, token descriptors.Token) {
	t.shares.nameLen = uint8(len(name))
	copy(t.shares.name[:], name)
	t.shares.token = token
}

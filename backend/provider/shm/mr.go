package shm

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
)

// Register enters the range in the table. Nothing is pinned, and the memory may be mapped later. key is ignored. The
// access of peers holds for copies that we make for them through a ring. Peers that copy by themselves have engines that refuse what is not
// allowed. Peers may map memory that is a file in memory, if they may READ it.
func (r *rail) Register(addr, length, _ uint64, peers option.Rights) (provider.MR, error) {
	if err := r.dev.CheckRange(addr, length); err != nil {
		return nil, err
	}
	w := r.find(addr, length, peers)
	key, err := r.table.put(addr, length, peers, nil, nil, w, nil)
	if err != nil {
		if w != nil && w.file != nil {
			w.file.Close()
		}
		return nil, r.error(provider.ErrRegister, "register", err)
	}
	return &region{rail: r, key: key, base: addr}, nil
}

// Later implements provider.Rail. The file of shared memory is looked for at once: later it may have neither descriptor nor path.
func (r *rail) Later(addr, length uint64) bool { return r.table.files.Private(addr, length) }

// region implements provider.MR: an entry of the table.
type region struct {
	rail      *rail
	key, base uint64
	desc      unsafe.Pointer // of GPU memory; allocated by C, freed by Close
	mem       *gpu.Range     // nil: host memory

	mu     sync.Mutex
	closed bool
}

func (m *region) Key(provider.Salt) uint64 { return m.key }
func (m *region) Base() uint64             { return m.base }
func (m *region) Desc() unsafe.Pointer     { return m.desc }

// Same implements provider.MR: cuPointerGetAttribute of the buffer ids.
func (m *region) Same() error {
	if m.desc == nil {
		return nil
	}
	return m.mem.Same()
}

// Close revokes the region's key and waits, 1 s at most, until no copy to or from the region is under way. After a
// timeout the error names the process whose copy is unfinished. The region is closed in any case.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.rail.table.revoke(m.key) // before WaitIdle reads the epochs
	var err error
	if m.desc != nil || m.rail.hadPeers.Load() { // else nobody copies for peers
		err = m.rail.core.WaitIdle(m.key)
	}
	if m.desc != nil {
		m.rail.core.Know(uint32(m.key), nil)
	}
	if m.desc != nil && err == nil { // else an answer to a peer may still read it
		m.rail.core.RetireDesc(m.desc)
	}
	m.rail.table.release(m.key)
	if err != nil {
		return m.rail.error(provider.ErrRegister, "deregister", err)
	}
	return nil
}

// entry is cma_entry: a region as peers read it. An odd generation means registered. A key is generation << 32 |
// index.
type entry struct{ generation, base, length, share atomic.Uint64 }

// shareTable is cma_shares: peers need it to map GPU regions.
type shareTable struct {
	place [ipc.PlaceSize]byte // of the descriptor server; written before the first share that needs the server
	token ipc.Token
	share [cma.MaxShares]gpu.Share
}

// The layouts in Go and C are equal.
var (
	_ [cma.EntrySize - unsafe.Sizeof(entry{})]byte
	_ [unsafe.Sizeof(entry{}) - cma.EntrySize]byte
	_ [cma.SharesSize - unsafe.Sizeof(shareTable{})]byte
	_ [unsafe.Sizeof(shareTable{}) - cma.SharesSize]byte
	_ [unsafe.Offsetof(shareTable{}.share) - cma.SharesAt]byte
)

// table holds the regions of a rail. Peers read its entries and shares directly. Copies read them without mu.
type table struct {
	entries []entry         // shared memory; the core unmaps it
	shares  *shareTable     // shared memory; the core unmaps it
	rights  []option.Rights // the core's: see cma.Rail.Rights

	mu         sync.Mutex
	open       int
	ended      bool   // the core may have unmapped the entries
	used       uint32 // entries used so far, freed ones included
	free       []uint32
	usedShares uint32
	freeShares []uint32
	mem        []*gpu.Range // GPU memory of regions, by index of the share
	watches    watches      // host memory that is a file, or may become one

	files fileTable // not under mu, as the next ones
	order order
	asks  int // 1: peers may map files, -1: they may not, 0: not known yet. Under rail.mu
}

func newTable(entries, shares unsafe.Pointer, rights []option.Rights) *table {
	return &table{rights: rights, entries: unsafe.Slice((*entry)(entries), cma.MaxRegions), shares: (*shareTable)(shares),
		watches: watches{of: map[uint32]*watch{}}}
}

// put enters a region. share and mem describe GPU memory and are nil for host memory; w is of host memory that is a file,
// or may become one, and is the table's if put succeeds. know (nil: none) is called before peers see the entry. ENOSPC: the table is full.
// ESHUTDOWN: the rail is closed.
func (t *table) put(base, length uint64, peers option.Rights, share *gpu.Share, mem *gpu.Range, w *watch, know func(entry uint32)) (key uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return 0, unix.ESHUTDOWN
	}
	if len(t.free) == 0 && t.used == cma.MaxRegions || share != nil && len(t.freeShares) == 0 && t.usedShares == cma.MaxShares {
		return 0, unix.ENOSPC
	}
	place := uint64(0)
	if share != nil {
		p := pop(&t.freeShares, &t.usedShares)
		for int(p) >= len(t.mem) {
			t.mem = append(t.mem, nil)
		}
		t.shares.share[p], t.mem[p] = *share, mem
		place = uint64(p) + 1
	}
	index := pop(&t.free, &t.used)
	if w != nil {
		place = w.share()
		t.watches.add(index, w)
	}
	e := &t.entries[index]
	generation := e.generation.Load() + 1
	e.base.Store(base)
	e.length.Store(length)
	e.share.Store(place)
	t.rights[index] = peers
	if know != nil {
		know(index)
	}
	e.generation.Store(generation) // after the fields that it validates
	t.open++
	return generation<<32 | uint64(index), nil
}

// pop takes a free index, or the next unused one.
func pop(free *[]uint32, used *uint32) uint32 {
	if n := len(*free); n > 0 {
		last := (*free)[n-1]
		*free = (*free)[:n-1]
		return last
	}
	*used++
	return *used - 1
}

// revoke invalidates a region's key. Copies that checked the key earlier may still be under way.
func (t *table) revoke(key uint64) { t.entries[uint32(key)].generation.Add(1) }

// release frees the entry and the share of a revoked region.
func (t *table) release(key uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.entries[uint32(key)]
	t.watches.remove(uint32(key))
	if place := e.share.Load(); place != 0 && place != cma.FileShare {
		t.freeShares = append(t.freeShares, uint32(place)-1)
		t.mem[uint32(place)-1] = nil
	}
	if e.generation.Load() < 1<<32-2 { // a key has 31 bits for the generation; an entry that has used them up is not used again
		t.free = append(t.free, uint32(key))
	}
	t.open--
}

// end takes no more regions. False: there are some.
func (t *table) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = t.open == 0
	return t.ended
}

// memory is the GPU memory of a registered region.
func (t *table) memory(key uint64) (m *gpu.Range, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uint32(key) >= t.used || key>>32&1 == 0 || t.entries[uint32(key)].generation.Load() != key>>32 {
		return m, false
	}
	place := t.entries[uint32(key)].share.Load()
	if place == 0 || place == cma.FileShare {
		return m, false
	}
	m = t.mem[uint32(place)-1]
	return m, m != nil
}

// serveAt publishes place and token of the descriptor server to peers.
func (t *table) serveAt(place *ipc.Place, token ipc.Token) {
	copy(t.shares.place[:], place.Append(nil))
	t.shares.token = token
}

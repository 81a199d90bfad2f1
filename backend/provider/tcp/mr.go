package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

// Register notes the range. Nothing is pinned, and the memory may be mapped later. key is ignored: the key is random. The range enters the rail's
// table when a peer is about to get its key (EnterAll), since that takes the rail's lock. Implements no call.
func (r *rail) Register(addr, length, _ uint64, peers option.Rights) (provider.MR, error) {
	if length == 0 || addr+length < addr || length > 1<<sock.OffsetBits {
		return nil, r.error(provider.ErrRegister, fmt.Errorf("range %#x + %d is empty, wraps, or has more than %d bytes", addr, length, uint64(1)<<sock.OffsetBits))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.note(addr, length, peers)
}

// Later implements provider.Rail: the table takes any range at any time.
func (r *rail) Later(uint64, uint64) bool { return true }

// ranges are the registrations of a rail. rail.mu guards them.
type ranges struct {
	keys    randoms
	slab    []region // allocated, and not used
	slabbed int      // size of the last slab
}

// region implements provider.MR: a range, and its entry of the rail's table once peers may know it.
type region struct {
	rail         *rail
	addr, length uint64
	gpu          *bounce    // nil: host memory
	mem          *gpu.Range // nil: host memory
	ours         bool       // it was a bounce buffer when it was registered: its address may be of other memory later
	peers        option.Rights

	state  atomic.Int32 // written under rail.mu
	number uint32       // set before state is entered
	key    uint64       // so is this one, which keys of sessions are made of. No peer gets it
}

// The state of a region goes up. One that finds the table full stays noted.
const (
	noted    int32 = iota
	entering       // its entry is being made
	entered        // it is in the table
	ended
)

var _ provider.Enterer = (*rail)(nil)

// note makes a region. Under mu.
func (r *rail) note(addr, length uint64, peers option.Rights) (*region, error) {
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	if len(r.slab) == 0 {
		r.slabbed = min(2*r.slabbed+1, mostSlab)
		r.slab = make([]region, r.slabbed)
	}
	m := &r.slab[0]
	r.slab = r.slab[1:]
	m.rail, m.addr, m.length, m.peers = r, addr, length, peers
	r.regions.Add(1)
	return m, nil
}

// mostSlab is the number of regions that are allocated at a time: applications register thousands in a row. A rail's first slabs are smaller.
const mostSlab = 32

// EnterAll implements provider.Enterer. Regions that are closed stay outside, and others enter once.
func (r *rail) EnterAll(list []provider.MR) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.enter(list)
}

// enter is EnterAll under mu, which keeps regions from being closed meanwhile.
func (r *rail) enter(list []provider.MR) (err error) {
	var regions []*region
	var entries []sock.Entry
	for _, mr := range list {
		m, is := mr.(*region)
		if !is || m.rail != r || m.state.Load() != noted {
			continue
		}
		if regions == nil {
			regions, entries = make([]*region, 0, len(list)), make([]sock.Entry, 0, len(list))
		}
		m.state.Store(entering) // the list may name it again
		e := sock.Entry{Addr: m.addr, Length: m.length, Key: r.keys.next(), Peers: m.peers, Ours: m.ours}
		if m.gpu != nil {
			e.GPU = m.gpu.GPU
		}
		regions, entries = append(regions, m), append(entries, e)
	}
	if len(regions) == 0 {
		return nil
	}
	r.c.Register(entries)
	for i, m := range regions {
		e := &entries[i]
		if e.Err == nil {
			m.number, m.key = e.Number, e.Key
			m.state.Store(entered)
			continue
		}
		if m.state.Store(noted); err == nil {
			err = r.error(provider.ErrRegister, fmt.Errorf("the table of at most %d regions: %w", sock.MaxRegions, e.Err))
		}
	}
	return err
}

// entry is the region's entry of the table. False: it could not enter, or is closed. It takes the rail's lock for a region outside alone: a peer asks
// for hundreds, after EnterAll.
func (m *region) entry() (number uint32, key uint64, is bool) {
	if m.state.Load() != entered {
		m.rail.mu.Lock()
		defer m.rail.mu.Unlock()
		_ = m.rail.enter([]provider.MR{m}) // ignored: the caller learns that there is no entry
		if m.state.Load() != entered {
			return 0, 0, false
		}
	}
	return m.number, m.key, true
}

// Key implements provider.MR: each session has another one. 0: the region could not enter the table, or is closed.
func (m *region) Key(salt provider.Salt) uint64 {
	number, key, is := m.entry()
	if !is {
		return 0
	}
	return sock.SessionKey(salt, key, number)
}

// Base returns the region's number in the upper bits: the lower bits are the offset.
func (m *region) Base() uint64 {
	number, _, _ := m.entry()
	return uint64(number) << sock.OffsetBits
}

// Desc tells the rail that a local address is one of a GPU.
func (m *region) Desc() unsafe.Pointer {
	if m.gpu == nil {
		return nil
	}
	return m.gpu.Core()
}

// Same implements provider.MR.
func (m *region) Same() error {
	if m.mem == nil {
		return nil
	}
	return m.mem.Same()
}

// Close ends all access to the region, also in the middle of a frame.
func (m *region) Close() (err error) {
	m.rail.mu.Lock()
	was := m.state.Swap(ended)
	m.rail.mu.Unlock()
	switch {
	case was == ended:
		return nil
	case was == entered:
		err = m.rail.c.Deregister(m.number)
	case m.gpu != nil: // copies of our own transfers
		err = m.rail.c.AwaitCopies(m.addr, m.length, m.gpu.GPU)
	}
	if err != nil {
		err = m.rail.error(provider.ErrRegister, fmt.Errorf("a copy by the GPU has not ended within a second: %w", err))
	}
	m.rail.regions.Add(-1)
	if m.gpu != nil {
		m.gpu.regions.Add(-1)
	}
	return err
}

// randoms are random numbers that are read several at a time: a read may be a system call.
type randoms struct {
	bytes [512]byte
	left  []byte // of bytes
}

func (r *randoms) next() uint64 {
	if len(r.left) == 0 {
		_, _ = rand.Read(r.bytes[:]) // never fails
		r.left = r.bytes[:]
	}
	n := binary.NativeEndian.Uint64(r.left)
	clear(r.left[:8])
	r.left = r.left[8:]
	return n
}

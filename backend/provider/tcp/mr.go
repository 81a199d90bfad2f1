package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
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

// ranges are the registrations of a rail.
type ranges struct {
	entering sync.Mutex // EnterAll. Before rail.mu, and the regions' mu

	keys    randoms  // under rail.mu, like the next ones
	slab    []region // allocated, and not used
	slabbed int      // size of the last slab
}

// region implements provider.MR: a range, and its entry of the rail's table once peers may know it.
type region struct {
	rail         *rail
	addr, length uint64
	gpu          *bounce    // nil: host memory
	mem          *gpu.Range // nil: host memory
	peers        option.Rights

	entered atomic.Bool // it is in the table, with the number and the key below
	number  uint32
	key     uint64 // what keys of sessions are made of. No peer gets it

	mu     sync.Mutex // no other lock is taken under it
	queued bool       // EnterAll is at it
	closed bool
}

var _ provider.Enterer = (*rail)(nil)

// note makes a region. Under mu.
func (r *rail) note(addr, length uint64, peers option.Rights) (*region, error) {
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	if len(r.slab) == 0 {
		r.slab = make([]region, min(2*r.slabbed+1, mostSlab))
		r.slabbed = len(r.slab)
	}
	m := &r.slab[0]
	r.slab = r.slab[1:]
	m.rail, m.addr, m.length, m.peers = r, addr, length, peers
	r.regions.Add(1)
	return m, nil
}

// mostSlab is the number of regions that are allocated at a time: applications register thousands in a row. A rail's first slabs are smaller.
const mostSlab = 32

// enterOne is EnterAll for the region.
func (m *region) enterOne() error {
	if m.entered.Load() {
		return nil
	}
	return m.rail.EnterAll([]provider.MR{m})
}

// EnterAll implements provider.Enterer. Regions that are closed stay outside.
func (r *rail) EnterAll(list []provider.MR) (err error) {
	r.entering.Lock()
	defer r.entering.Unlock()
	regions := make([]*region, 0, len(list))
	for _, mr := range list {
		if m, is := mr.(*region); is && m.rail == r && m.queue() {
			regions = append(regions, m)
		}
	}
	if len(regions) == 0 {
		return nil
	}
	entries := make([]sock.Entry, len(regions))
	r.mu.Lock()
	for i, m := range regions {
		entries[i] = sock.Entry{Addr: m.addr, Length: m.length, Key: r.keys.next(), Peers: m.peers}
	}
	r.mu.Unlock()
	for i, m := range regions {
		if m.gpu != nil {
			entries[i].GPU, entries[i].Ours = m.gpu.GPU, m.mem.Driver.Ours(m.addr, m.length)
		}
	}
	r.c.Register(entries)
	for i, m := range regions {
		if e := m.enter(&entries[i]); e != nil && err == nil {
			err = r.error(provider.ErrRegister, fmt.Errorf("the table of %d regions: %w", r.regions.Load(), e))
		}
	}
	return err
}

// queue reports that the region is to enter the table; a list may name it twice. Under rail.entering.
func (m *region) queue() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.queued || m.entered.Load() {
		return false
	}
	m.queued = true
	return true
}

// enter takes the entry that the region has got. Under rail.entering.
func (m *region) enter(e *sock.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queued = false
	switch {
	case e.Err != nil:
		return e.Err
	case m.closed: // meanwhile: no peer has the key
		return m.rail.c.Deregister(e.Number)
	}
	m.number, m.key = e.Number, e.Key
	m.entered.Store(true)
	return nil
}

// Key implements provider.MR: each session has another one. 0: the region could not enter the table, or is closed.
func (m *region) Key(salt provider.Salt) uint64 {
	if m.enterOne() != nil || !m.entered.Load() {
		return 0
	}
	return sock.SessionKey(salt, m.key, m.number)
}

// Base returns the region's number in the upper bits: the lower bits are the offset.
func (m *region) Base() uint64 {
	if m.enterOne() != nil {
		return 0
	}
	return uint64(m.number) << sock.OffsetBits
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
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	switch {
	case closed:
		return nil
	case m.entered.Load():
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

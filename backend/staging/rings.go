// Package staging moves bytes that no rail carries directly. They go over a ring of bounce buffers in memory that a rail
// reaches: on this side, on the peer's, or on both. The owner of GPU memory copies between that memory and the ring. An inner
// transfer moves the bytes between the rings, with windows, link shares, fences and replays like any transfer. A run moves the
// bytes of a local transfer. A Server serves the runs of a peer. See docs/gpu.md, "Staging".
//
// # When the choice is made
//
// A transfer is staged:
//
//   - At prepare, if that is known by then.
//   - When the peer's keys are here (ready): no link has both memories, whatever other rails have them.
//   - When the first post finds that the peer's memory cannot be mapped (restage): the same run continues through
//     bounce buffers, with its notification.
//   - When a transfer's rails are down and others work (offRails in transfer/reach.go), after 100 ms. Once the rails
//     are back, nothing is staged for that reason.
//   - When a mapping takes more than 100 ms (thousands of VMM handles): transfers go through host memory until the
//     mapping is there.
//
// # What a run waits for
//
// The code keeps these rules:
//
//   - Removal. When a peer is removed, its runs end with GR-1061. A transfer that has just failed because its links
//     cannot reach the memory does not start again over bounce buffers (mayRestart in transfer/transfer.go).
//   - Reuse of a slot. A slot is free when nothing uses it: an aborted inner transfer has drained, a copy has ended.
//     If a peer does not answer a copy within xfer_timeout, it loses its session, since the copy may still write to
//     its memory.
//   - Revocation. A region has keys even if no common rail has it (they are empty or useless then), so that a
//     revocation finds its transfers. A run first becomes visible to deregistration, and then checks that its regions
//     are live.
package staging

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/stats"
	"gorail/backend/wire"
)

// Side is the staging state of an engine: the driver, and the engine's own ring. It is safe for concurrent use.
type Side struct {
	Copier  *Copier
	Regions *region.Registry
	Log     *slog.Logger
	Life    *core.Lifetime
	Size    uint64 // of a ring in host memory: option stage_size
	Memory  uint64 // of all peers' rings: option staging_memory; 0: see ringsPerGPU
	Limits  *limits.Counts
	Abandon chan struct{} // closed by Ending

	room  limits.Places // memory of peers' rings
	lines limits.Lines  // log lines that peers cause

	mu       sync.Mutex
	own      *localRing       // ring in host memory; nil: not made yet
	holders  map[*peer.In]int // peers with rings, and how many
	recalled *peer.In         // the last one that was closed for another identity's ring,
	since    time.Time        // and when

	transfers, bytes, copies atomic.Uint64 // stats.Staged
	took                     stats.Recorder
	Packing                  Packing
}

// Ending makes transfers that are being cancelled abandon copies that a GPU does not end within a second. Their memory stays as it is.
func (s *Side) Ending() { close(s.Abandon) }

// Counts returns the counters.
func (s *Side) Counts() stats.Staged {
	return stats.Staged{Transfers: s.transfers.Load(), Bytes: s.bytes.Load(), Copies: s.copies.Load(), Times: s.took.Times(),
		Packed: s.Packing.from.Load(), PackedBytes: s.Packing.to.Load()}
}

// slotsOfRing is the number of bounce buffers (slots) of a ring, which limits the chunks in flight. An engine has one ring in host
// memory for its own transfers. Each peer session has one ring for each kind of memory and GPU.
const slotsOfRing = 16

// localRing is a ring of bounce buffers in our memory, registered like other memory.
type localRing struct {
	side  *Side
	ring  *Ring
	id    uint64
	size  uint64 // of one slot
	rng   wire.Range
	packs bool        // the peer was told that our GPU packs and unpacks chunks in it
	free  chan uint64 // addresses of free slots
}

// newRing allocates and registers a ring: on a GPU, or in host memory for GPU user.
func (s *Side) newRing(device, user int) (*localRing, error) {
	size := s.slotSize(device)
	ring, err := s.Copier.Ring(device, user, size*slotsOfRing)
	if err != nil {
		return nil, fmt.Errorf("%w (option stage_size)", err)
	}
	l := &localRing{side: s, ring: ring, size: size, rng: wire.Range{Addr: ring.Addr(), Len: ring.Size()}, free: make(chan uint64, slotsOfRing)}
	if device != Host {
		l.rng.Mem, l.rng.Dev = region.VRAM, uint64(device)
	}
	if l.id, err = s.register(l.rng); err != nil {
		_ = ring.Free()
		return nil, err
	}
	if why := s.Regions.Refused(l.id); why != nil { // a later ring may fare better
		l.close()
		return nil, fmt.Errorf("the bounce buffers' memory could not be registered: %w", why)
	}
	for i := range uint64(slotsOfRing) {
		l.free <- l.rng.Addr + i*size
	}
	return l, nil
}

func (s *Side) register(rng wire.Range) (uint64, error) {
	if s.Life.Ending() || !s.Life.Enter() {
		return 0, core.ErrClosing
	}
	defer s.Life.Leave()
	return s.Regions.Register(rng, option.PeersBoth)
}

// close deregisters and frees the ring. The caller ensures that the ring is unused. freed is false if the memory stays
// allocated.
func (l *localRing) close() (freed bool) {
	err := error(nil)
	if l.side.Life.Enter() { // otherwise all memory is deregistered, or is about to be
		err = l.side.Regions.Deregister(l.id)
		l.side.Life.Leave()
	}
	if err == nil {
		err = l.ring.Free()
	}
	if err != nil {
		l.side.Log.Warn("bounce buffers not freed: their memory stays allocated", "addr", fmt.Sprintf("%#x", l.rng.Addr), "len", l.rng.Len, "err", err)
	}
	return err == nil
}

// device is the GPU whose memory the ring is in, or Host.
func (l *localRing) device() int {
	if l.rng.Mem == region.VRAM {
		return int(l.rng.Dev)
	}
	return Host
}

// ownRing returns the ring of this side. The first call makes it.
func (s *Side) ownRing(user int) (*localRing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		l, err := s.newRing(Host, user)
		if err != nil {
			return nil, err
		}
		s.own = l
	}
	return s.own, nil
}

// Close frees all resources, once no rail knows the ring. The ring's registration has ended with all others. Memory that a GPU may still
// use stays allocated. The driver may wait for all work of the GPUs.
func (s *Side) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		if err := s.own.ring.Free(); err != nil {
			s.Log.Warn("bounce buffers not freed: their memory stays allocated", "err", err)
		}
		s.own = nil
	}
	if err := s.Copier.Close(); err != nil {
		s.Log.Warn("closing the GPU driver failed", "err", err)
	}
}

// Host is the device number of rings in host memory.
const Host = -1

// Ring is local memory that copies of a Copier start or end in.
type Ring struct {
	c      *Copier
	device int    // GPU, or Host
	mem    []byte // of a Host ring
	addr   uint64
	size   uint64
	copies atomic.Int32 // that have not ended
}

// Ring allocates size bytes. GPU memory is VMM memory: peers of other containers map it by
// its descriptors (gpu.Driver.SharedVRAM). Host memory comes from mmap and cuMemHostRegister, in the
// context of GPU user.
func (c *Copier) Ring(device, user int, size uint64) (*Ring, error) {
	d, err := c.gpus.Open()
	if err != nil {
		return nil, err
	}
	r := &Ring{c: c, device: device, size: size}
	if device != Host {
		if r.addr, err = d.SharedVRAM(device, size); err != nil {
			return nil, fmt.Errorf("allocate %d bytes of GPU %d for staging: %w", size, device, err)
		}
		return r, nil
	}
	if _, err := d.Device(user); err != nil { // pinning requires a context
		return nil, err
	}
	if r.mem, err = syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory for staging: %w", size, err)
	}
	_ = syscall.Madvise(r.mem, 14) // MADV_HUGEPAGE: fewer entries to pin
	at := unsafe.Pointer(unsafe.SliceData(r.mem))
	if err := d.Pin(at, size); err != nil {
		_ = syscall.Munmap(r.mem)
		return nil, fmt.Errorf("pin %d bytes for staging: %w", size, err)
	}
	r.addr = uint64(uintptr(at))
	return r, nil
}

// Addr is the address of the first byte.
func (r *Ring) Addr() uint64 { return r.addr }

// Size in bytes.
func (r *Ring) Size() uint64 { return r.size }

// Free frees the ring, which no rail may know any more. ErrUnfinished: a copy is in progress, and the ring stays allocated.
func (r *Ring) Free() error {
	if r.copies.Load() > 0 {
		return ErrUnfinished
	}
	d, err := r.c.gpus.Open()
	if err != nil {
		return err
	}
	if r.device != Host {
		return d.FreeVRAM(r.device, r.addr)
	}
	if err := d.Unpin(unsafe.Pointer(unsafe.SliceData(r.mem)), r.size); err != nil {
		return err
	}
	return syscall.Munmap(r.mem)
}

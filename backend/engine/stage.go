package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/wire"
)

// Staging is how bytes move that no rail carries whole: over a ring in memory that a rail does reach, on this side, the peer's or both.
// The owner of a GPU's memory copies between it and the ring; what is between the rings is a transfer as any other (an inner one), with
// windows, shares, fences and replays. Here is what an engine has of it: the driver, and a ring of its own. See docs/gpu.md, "Staging".
type staging struct {
	e      *Engine
	copier *stage.Copier

	mu  sync.Mutex
	own *slots // in host memory; nil: not yet

	transfers, bytes, copies atomic.Uint64 // stats.Staged
}

// slotsOfRing is how many slots a ring has: so many chunks are on their way at once.
const slotsOfRing = 16

// slots is a ring of ours, registered as any memory is.
type slots struct {
	e    *Engine
	ring *stage.Ring
	id   uint64
	size uint64 // of one
	rng  wire.Range
	free chan uint64 // addresses
}

// newSlots allocates and registers a ring: on a GPU, or of the host's memory for GPU user.
func (s *staging) newSlots(device, user int) (*slots, error) {
	size := max(s.e.opt.StageSize/slotsOfRing, 64<<10) &^ (64<<10 - 1)
	ring, err := s.copier.Ring(device, user, size*slotsOfRing)
	if err != nil {
		return nil, fmt.Errorf("%w (option stage_size)", err)
	}
	l := &slots{e: s.e, ring: ring, size: size, rng: wire.Range{Addr: ring.Addr(), Len: ring.Size()}, free: make(chan uint64, slotsOfRing)}
	if device != stage.Host {
		l.rng.Mem, l.rng.Dev = region.VRAM, uint64(device)
	}
	if l.id, err = s.e.Register(l.rng.Addr, l.rng.Len, l.rng.Dev, l.rng.Mem, nil); err != nil {
		_ = ring.Free()
		return nil, err
	}
	for i := range uint64(slotsOfRing) {
		l.free <- l.rng.Addr + i*size
	}
	return l, nil
}

// close ends it; nothing uses it any more.
func (l *slots) close() {
	err := l.e.Deregister(l.id)
	if err == nil {
		err = l.ring.Free()
	}
	if err != nil {
		l.e.log.Warn("memory of a staging ring stays allocated", "addr", fmt.Sprintf("%#x", l.rng.Addr), "len", l.rng.Len, "err", err)
	}
}

// ours is the ring of this side, made when it is needed first.
func (s *staging) ours(user int) (*slots, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		l, err := s.newSlots(stage.Host, user)
		if err != nil {
			return nil, err
		}
		s.own = l
	}
	return s.own, nil
}

// close gives everything back, once no rail knows the ring. Its registration has ended with all others.
func (s *staging) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		if err := s.own.ring.Free(); err != nil {
			s.e.log.Warn("memory of the staging ring stays allocated", "err", err)
		}
		s.own = nil
	}
	if err := s.copier.Close(); err != nil {
		s.e.log.Warn("closing the GPU's driver", "err", err)
	}
}

// descs are descriptors of the engine's own.
type descs []Desc

// set fills one; neighbours of one region share what stands for the shim's metadata object.
func (d descs) set(i int, r *region.Region, addr, length uint64) {
	var md unsafe.Pointer
	if i > 0 && d[i-1].region() == r.ID {
		md = d[i-1].MD
	} else {
		md = unsafe.Pointer(&mdOf{id: r.ID})
	}
	d[i] = Desc{Addr: addr, Len: length, Dev: r.Dev, MD: md}
}

// mdOf is a region id where Desc has the shim's metadata object.
type mdOf struct {
	_  [MDRegion]byte
	id uint64
}

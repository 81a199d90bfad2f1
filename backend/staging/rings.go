// Package staging moves bytes that no rail carries whole: over a ring in memory that a rail does reach, on this side, the peer's or both. The
// owner of a GPU's memory copies between it and the ring; what is between the rings is a transfer as any other (an inner one), with windows,
// shares, fences and replays. A Run is one run of a transfer of ours, a Server what a peer's runs ask of us. See docs/gpu.md, "Staging".
package staging

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"gorail/backend/lifetime"
	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/stats"
	"gorail/backend/wire"
)

// Side is what an engine has of staging: the driver, and a ring of its own. Safe for concurrent use.
type Side struct {
	Copier  *stage.Copier
	Regions *region.Registry
	Log     *slog.Logger
	Life    *lifetime.Engine
	Size    uint64 // of a ring: option stage_size

	mu  sync.Mutex
	own *slots // in host memory; nil: not yet

	transfers, bytes, copies atomic.Uint64 // stats.Staged
}

// Counts are the counters.
func (s *Side) Counts() stats.Staged {
	return stats.Staged{Transfers: s.transfers.Load(), Bytes: s.bytes.Load(), Copies: s.copies.Load()}
}

// slotsOfRing is how many slots a ring has: so many chunks are on their way at once.
const slotsOfRing = 16

// slots is a ring of ours, registered as any memory is.
type slots struct {
	side *Side
	ring *stage.Ring
	id   uint64
	size uint64 // of one
	rng  wire.Range
	free chan uint64 // addresses
}

// newSlots allocates and registers a ring: on a GPU, or of the host's memory for GPU user.
func (s *Side) newSlots(device, user int) (*slots, error) {
	size := max(s.Size/slotsOfRing, 64<<10) &^ (64<<10 - 1)
	ring, err := s.Copier.Ring(device, user, size*slotsOfRing)
	if err != nil {
		return nil, fmt.Errorf("%w (option stage_size)", err)
	}
	l := &slots{side: s, ring: ring, size: size, rng: wire.Range{Addr: ring.Addr(), Len: ring.Size()}, free: make(chan uint64, slotsOfRing)}
	if device != stage.Host {
		l.rng.Mem, l.rng.Dev = region.VRAM, uint64(device)
	}
	if l.id, err = s.register(l.rng); err != nil {
		_ = ring.Free()
		return nil, err
	}
	for i := range uint64(slotsOfRing) {
		l.free <- l.rng.Addr + i*size
	}
	return l, nil
}

func (s *Side) register(rng wire.Range) (uint64, error) {
	if s.Life.Closed() || !s.Life.Enter() {
		return 0, lifetime.ErrClosing
	}
	defer s.Life.Leave()
	return s.Regions.Register(rng)
}

// close ends it; nothing uses it any more.
func (l *slots) close() {
	err := error(nil)
	if l.side.Life.Enter() { // else all is deregistered, or about to be
		err = l.side.Regions.Deregister(l.id)
		l.side.Life.Leave()
	}
	if err == nil {
		err = l.ring.Free()
	}
	if err != nil {
		l.side.Log.Warn("memory of a staging ring stays allocated", "addr", fmt.Sprintf("%#x", l.rng.Addr), "len", l.rng.Len, "err", err)
	}
}

// ours is the ring of this side, made when it is needed first.
func (s *Side) ours(user int) (*slots, error) {
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

// Close gives everything back, once no rail knows the ring. Its registration has ended with all others.
func (s *Side) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		if err := s.own.ring.Free(); err != nil {
			s.Log.Warn("memory of the staging ring stays allocated", "err", err)
		}
		s.own = nil
	}
	if err := s.Copier.Close(); err != nil {
		s.Log.Warn("closing the GPU's driver", "err", err)
	}
}

package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gorail/backend/plan"
	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// workers is how many chunks of a transfer are under way: enough that the copies here, the wire and the copies there all have some. 8 of
// 4 MiB gave 91 GB/s between two H200s over a ring on one of them, for 250 us go by until the peer has answered.
const workers = slotsOfRing

// overRings moves a group in chunks; all of it anew over the host's memory when the ring that it began with can't be mapped.
func (s *stagedRun) overRings(g *group) error {
	for {
		w, err := s.way(g)
		if err != nil {
			return err
		}
		s.tell(g, w)
		if err := s.chunks(g, w); !errors.Is(err, errUnreachable) {
			return err
		} else if !w.mapped() {
			return fmt.Errorf("staging rings can't be reached: %w", err)
		}
		w.there.apart.Store(true)
	}
}

// chunks moves a group's chunks, some side by side; the error is the first one's.
func (s *stagedRun) chunks(g *group, w *stagedWay) error {
	cut := &cutter{g: g, slot: w.slot}
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-s.stop:
					return
				default:
				}
				mu.Lock()
				k, more := cut.cut()
				more = more && first == nil
				mu.Unlock()
				if !more {
					return
				}
				if err := s.chunk(w, k); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// stagedWay are the rings that a group goes over; nil: none on that side.
type stagedWay struct {
	here  *slots
	there *peerRing
	slot  uint64
}

// mapped says that this side copies to and from memory of the peer's GPU.
func (w *stagedWay) mapped() bool { return w.there != nil && w.there.region.Mem == region.VRAM }

func (s *stagedRun) way(g *group) (*stagedWay, error) {
	w := &stagedWay{slot: 1 << 62}
	if g.rmem == region.VRAM {
		// This side copies to memory of the peer's GPU, the peer from there; while mapping takes long, that would have to wait, too.
		if s.r.mapsRings() && g.lmem == region.VRAM && s.tried != linksOpening {
			if p, err := s.asked.ring(ringKey{region.VRAM, g.rdev}, s.stop); err == nil && !p.apart.Load() {
				w.there = p
			}
		}
		if w.there == nil {
			p, err := s.asked.ring(ringKey{0, g.rdev}, s.stop)
			if err != nil {
				return nil, err
			}
			w.there = p
		}
		w.slot = w.there.slot
	}
	if g.lmem == region.VRAM && !w.mapped() {
		l, err := s.t.e.stage.ours(int(g.ldev))
		if err != nil {
			return nil, status.Errorf(status.ErrBackend, "%w", err)
		}
		w.here, w.slot = l, min(w.slot, l.size)
	}
	if w.here == nil && w.there == nil {
		return nil, status.Errorf(status.ErrNotSupported, "%w", errUnreachable)
	}
	return w, nil
}

// tell logs once a peer and kind of memory that its transfers are staged, and why.
func (s *stagedRun) tell(g *group, w *stagedWay) {
	what := g.names()
	a := s.asked
	a.mu.Lock()
	key := fmt.Sprint(what, s.tried == linksOpening)
	told := a.told[key]
	a.told[key] = true
	a.mu.Unlock()
	if told {
		return
	}
	why := "no rail that works moves memory of these GPUs by itself"
	switch {
	case s.tried == linksOpening:
		why = "the peer's memory is still being mapped here"
	case g.gpus() && s.r.mapsRings():
		why = s.t.e.trouble()
	case g.lmem != g.rmem:
		why = "no rail that works moves bytes between this host memory and GPU by itself"
	}
	s.t.e.log.Info("transfers are staged", "peer", s.r.name, "between", what, "reason", why, "ring_here", w.here != nil, "ring_there", w.there != nil,
		"slot", w.slot)
}

// chunk moves one chunk. A slot is free again when nothing uses it any more, whatever came of it.
func (s *stagedRun) chunk(w *stagedWay, k chunk) error {
	var here, there uint64
	sound := false
	if w.here != nil {
		if here = s.take(w.here.free); here == 0 {
			return errStopped
		}
		defer func() { w.here.free <- here }()
	}
	if w.there != nil {
		if there = s.take(w.there.free); there == 0 {
			return errStopped
		}
		defer func() { s.r.slotBack(w.there, there, sound) }()
	}
	steps := []func() error{
		func() error { return s.copyHere(w, k, here) },
		func() error { return s.between(w, k, here, there) },
		func() error { return s.copyThere(w, k, there) },
	}
	if s.t.op == opRead {
		steps[0], steps[2] = steps[2], steps[0]
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	sound = true
	return nil
}

// slotBack gives a slot of the peer's back. After a transfer that failed bytes of it may still be under way over a link that has stopped: until the
// peer has closed its end of that, nobody else's bytes are put there.
func (r *remote) slotBack(p *peerRing, at uint64, sound bool) {
	quiet := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fenceBroken("a slot is given back over a broken link")
		return r.state != ready || !slices.ContainsFunc(r.links, func(l *link) bool { return l.phase == fencing || l.phase == draining })
	}
	if sound || quiet() {
		p.free <- at
		return
	}
	r.e.late.Go(func() {
		for tick := time.NewTicker(5 * time.Millisecond); !quiet(); {
			<-tick.C
		}
		p.free <- at
	})
}

// take waits for a slot; 0: stopped.
func (s *stagedRun) take(free <-chan uint64) uint64 {
	select {
	case a := <-free:
		return a
	case <-s.stop:
	case <-s.asked.over:
	}
	return 0
}

func (s *stagedRun) copyHere(w *stagedWay, k chunk, at uint64) error {
	if w.here == nil {
		return nil
	}
	pieces := make([]stage.Piece, len(k.ops))
	for i, o := range k.ops {
		pieces[i] = stage.Piece{Addr: o.Local, Len: o.Len}
	}
	if err := s.t.e.regions.Hold(s.t.locals); err != nil {
		return err
	}
	defer s.t.e.regions.Copied(s.t.locals)
	return s.copying(func() error {
		return s.t.e.stage.copier.Copy(w.here.ring, at, int(k.ldev), pieces, s.t.op == opWrite, s.stop)
	})
}

func (s *stagedRun) copyThere(w *stagedWay, k chunk, at uint64) error {
	if w.there == nil {
		return nil
	}
	f := &wire.Copy{Out: s.t.op == opRead, At: at, Pieces: make(wire.CopyPieces, len(k.ops))}
	number := map[uint32]uint16{}
	for i, o := range k.ops {
		n, ok := number[o.RRegion]
		if !ok {
			n = uint16(len(f.Regions))
			number[o.RRegion] = n
			f.Regions = append(f.Regions, s.regions[o.RRegion].Range)
		}
		f.Pieces[i] = wire.CopyPiece{Region: n, Addr: o.Remote, Len: o.Len}
	}
	return s.asked.copyThere(f)
}

// between moves a chunk from ring to ring, or between a ring and the memory of the other side.
func (s *stagedRun) between(w *stagedWay, k chunk, here, there uint64) error {
	ops := k.ops
	if w.here != nil && w.there != nil {
		ops = []plan.Op{{Len: k.bytes}}
	}
	local, remote := make(descs, len(ops)), make(descs, len(ops))
	var own *region.Region
	if w.here != nil {
		own = s.t.e.regions.Regions.Get(w.here.id)
	}
	for i, o := range ops {
		if own != nil {
			local.set(i, own, here, o.Len)
			here += o.Len
		} else {
			local.set(i, s.regions[o.LRegion], o.Local, o.Len)
		}
		if w.there != nil {
			remote.set(i, w.there.region, there, o.Len)
			there += o.Len
		} else {
			remote.set(i, s.regions[o.RRegion], o.Remote, o.Len)
		}
	}
	return s.transfer(local, remote)
}

package staging

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/backend/plan"
	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// workers is how many chunks of a transfer are under way: enough that the copies here, the wire and the copies there all have some. 8 of
// 4 MiB gave 91 GB/s between two H200s over a ring on one of them, for 250 us go by until the peer has answered.
const workers = slotsOfRing

// overRings moves a group in chunks; all of it anew over the host's memory when the ring that it began with can't be mapped.
func (s *Run) overRings(g *group) error {
	for {
		w, err := s.rings(g)
		if err != nil {
			return err
		}
		s.tell(g, w)
		if err := s.chunks(g, w); !errors.Is(err, transfer.ErrUnreachable) {
			return err
		} else if !w.mapped() {
			return fmt.Errorf("staging rings can't be reached: %w", err)
		}
		w.there.apart.Store(true)
	}
}

// chunks moves a group's chunks, some side by side; the error is the first one's.
func (s *Run) chunks(g *group, w *way) error {
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

// way are the rings that a group goes over; nil: none on that side.
type way struct {
	here  *slots
	there *peerRing
	slot  uint64
}

// mapped says that this side copies to and from memory of the peer's GPU.
func (w *way) mapped() bool { return w.there != nil && w.there.region.Mem == region.VRAM }

func (s *Run) rings(g *group) (*way, error) {
	w := &way{slot: 1 << 62}
	if g.RemoteMem == region.VRAM {
		// This side copies to memory of the peer's GPU, the peer from there; while mapping takes long, that would have to wait, too.
		if s.t.Peer().MapsRings() && g.LocalMem == region.VRAM && s.tried != transfer.LinksOpening {
			if p, err := s.asked.ring(ringKey{region.VRAM, g.RemoteDev}, s.stop); err == nil && !p.apart.Load() {
				w.there = p
			}
		}
		if w.there == nil {
			p, err := s.asked.ring(ringKey{0, g.RemoteDev}, s.stop)
			if err != nil {
				return nil, err
			}
			w.there = p
		}
		w.slot = w.there.slot
	}
	if g.LocalMem == region.VRAM && !w.mapped() {
		l, err := s.side.ours(int(g.LocalDev))
		if err != nil {
			return nil, status.Errorf(status.ErrBackend, "%w", err)
		}
		w.here, w.slot = l, min(w.slot, l.size)
	}
	if w.here == nil && w.there == nil {
		return nil, status.Errorf(status.ErrNotSupported, "%w", transfer.ErrUnreachable)
	}
	return w, nil
}

// tell logs once a peer and kind of memory that its transfers are staged, and why.
func (s *Run) tell(g *group, w *way) {
	what := g.String()
	a := s.asked
	a.mu.Lock()
	key := fmt.Sprint(what, s.tried == transfer.LinksOpening)
	told := a.told[key]
	a.told[key] = true
	a.mu.Unlock()
	if told {
		return
	}
	why := "no rail that works moves memory of these GPUs by itself"
	switch {
	case s.tried == transfer.LinksOpening:
		why = "the peer's memory is still being mapped here"
	case g.GPUs() && s.t.Peer().MapsRings():
		why = s.t.LastError()
	case g.LocalMem != g.RemoteMem:
		why = "no rail that works moves bytes between this host memory and GPU by itself"
	}
	s.side.Log.Info("transfers are staged", "peer", s.t.Peer().Name, "between", what, "reason", why, "ring_here", w.here != nil, "ring_there", w.there != nil,
		"slot", w.slot)
}

// chunk moves one chunk. A slot is free again when nothing uses it any more, whatever came of it.
func (s *Run) chunk(w *way, k chunk) error {
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
		defer func() { s.asked.slotBack(w.there, there, sound) }()
	}
	steps := []func() error{
		func() error { return s.copyHere(w, k, here) },
		func() error { return s.between(w, k, here, there) },
		func() error { return s.copyThere(w, k, there) },
	}
	if s.t.Op() == transfer.Read {
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
func (a *Requests) slotBack(p *peerRing, at uint64, sound bool) {
	if sound || a.session.Quiet() {
		p.free <- at
		return
	}
	a.side.Life.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !a.session.Quiet() {
			<-tick.C
		}
		p.free <- at
	})
}

// take waits for a slot; 0: stopped.
func (s *Run) take(free <-chan uint64) uint64 {
	select {
	case a := <-free:
		return a
	case <-s.stop:
	case <-s.asked.over:
	}
	return 0
}

func (s *Run) copyHere(w *way, k chunk, at uint64) error {
	if w.here == nil {
		return nil
	}
	pieces := make([]stage.Piece, len(k.ops))
	for i, o := range k.ops {
		pieces[i] = stage.Piece{Addr: o.Local, Len: o.Len}
	}
	if err := s.side.Regions.Hold(s.t.Locals()); err != nil {
		return err
	}
	defer s.side.Regions.Copied(s.t.Locals())
	return s.copying(func() error {
		return s.side.Copier.Copy(w.here.ring, at, int(k.LocalDev), pieces, s.t.Op() == transfer.Write, s.stop)
	})
}

func (s *Run) copyThere(w *way, k chunk, at uint64) error {
	if w.there == nil {
		return nil
	}
	f := &wire.Copy{Out: s.t.Op() == transfer.Read, At: at, Pieces: make(wire.CopyPieces, len(k.ops))}
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
func (s *Run) between(w *way, k chunk, here, there uint64) error {
	ops := k.ops
	if w.here != nil && w.there != nil {
		ops = []plan.Op{{Len: k.bytes}}
	}
	local, remote := transfer.Own(len(ops)), transfer.Own(len(ops))
	var own *region.Region
	if w.here != nil {
		own = s.side.Regions.Regions.Get(w.here.id)
	}
	for i, o := range ops {
		if own != nil {
			local.Set(i, own.ID, here, o.Len)
			here += o.Len
		} else {
			local.Set(i, s.regions[o.LRegion].ID, o.Local, o.Len)
		}
		if w.there != nil {
			remote.Set(i, w.there.region.ID, there, o.Len)
			there += o.Len
		} else {
			remote.Set(i, s.regions[o.RRegion].ID, o.Remote, o.Len)
		}
	}
	return s.transfer(local, remote)
}

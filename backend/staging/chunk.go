package staging

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// workers is the number of chunks of a transfer in progress. With that many, the local copies, the wire and the peer's copies
// all have work. 8 chunks of 4 MiB gave 91 GB/s between two H200s over a ring on one of them, because the peer takes 250 us to
// answer.
const workers = slotsOfRing

// overRings moves a group in chunks. If the peer's GPU ring cannot be mapped, overRings starts again over host memory.
func (s *run) overRings(g *group) error {
	for {
		w, err := s.rings(g)
		if err != nil {
			return err
		}
		s.logStaged(g, w)
		if err := s.chunks(g, w); !errors.Is(err, transfer.ErrUnreachable) {
			return err
		} else if !w.mapped() {
			return fmt.Errorf("no link reaches the bounce buffers: %w", err)
		}
		w.there.unmappable.Store(true)
	}
}

// chunks moves the chunks of a group, some in parallel. It returns the first error, or the one that ended the session.
func (s *run) chunks(g *group, w *ringPair) error {
	cut := &cutter{g: g, slot: w.slot}
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-s.Stop():
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
					if first == nil || errors.Is(err, errGaveUp) { // its session's end fails the other chunks
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

// ringPair holds the rings that a group uses; nil: none on that side.
type ringPair struct {
	here  *localRing
	there *peerRing
	slot  uint64
	pace  *pace  // decides which chunks are packed; nil: none
	clear string // why not
}

// mapped reports whether this side copies directly to and from memory of the peer's GPU.
func (w *ringPair) mapped() bool { return w.there != nil && w.there.region.Mem == region.VRAM }

func (s *run) rings(g *group) (*ringPair, error) {
	w := &ringPair{slot: 1 << 62}
	if g.RemoteMem == region.VRAM {
		memory := s.regions[g.ops[0].RRegion].Claim
		// With a ring on the peer's GPU, this side copies to the ring and the peer copies from there. While mappings are slow,
		// mapping that ring would also be slow.
		if s.t.Peer().MapsRings() && g.LocalMem == region.VRAM && s.Tried != transfer.LinksOpening {
			if p, err := s.requests.ring(ringKey{region.VRAM, g.RemoteDev}, memory, s.Stop()); err == nil && !p.unmappable.Load() {
				w.there = p
			}
		}
		if w.there == nil {
			p, err := s.requests.ring(ringKey{0, g.RemoteDev}, memory, s.Stop())
			if err != nil {
				return nil, err
			}
			w.there = p
		}
		w.slot = w.there.slot
	}
	if g.LocalMem == region.VRAM && !w.mapped() {
		l, err := s.side.ownRing(int(g.LocalDev))
		if err != nil {
			return nil, errcode.StagingFailed.Errorf("%w", err)
		}
		w.here, w.slot = l, min(w.slot, l.size)
	}
	if w.here == nil && w.there == nil {
		return nil, errcode.NoPath.Errorf("%w", transfer.ErrUnreachable)
	}
	s.packing(g, w)
	return w, nil
}

// logStaged logs that transfers go through bounce buffers, and why, once for each pair of memories and mapping state of a session.
func (s *run) logStaged(g *group, w *ringPair) {
	what := g.String()
	a := s.requests
	a.mu.Lock()
	key := fmt.Sprint(what, s.Tried == transfer.LinksOpening)
	logged := a.logged[key]
	a.logged[key] = true
	a.mu.Unlock()
	if logged {
		return
	}
	why := "no working rail moves memory of these GPUs directly"
	switch {
	case s.Tried == transfer.LinksOpening:
		why = "the peer's memory is still being mapped here"
	case g.GPUs() && s.t.Peer().MapsRings():
		why = s.t.LastError()
		a.session.Unmapped(why)
	case g.LocalMem != g.RemoteMem:
		why = "no working rail moves bytes directly between this host memory and GPU"
	}
	s.side.Log.Info("transfers go through bounce buffers", "peer", s.t.Peer().Name, "between", what, "reason", why, "buffers_here", w.here != nil, "buffers_there", w.there != nil,
		"slot", w.slot, "compressed", w.compressed())
}

// chunk moves one chunk. It frees its slots once nothing uses them, also after an error.
func (s *run) chunk(w *ringPair, k chunk) error {
	var here, there uint64
	ok := false
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
		defer func() { s.requests.returnSlot(w.there, there, ok) }()
	}
	if w.pace != nil && k.bytes >= packLeast {
		packs := w.pace.begin(time.Now())
		defer func() { w.pace.ended(packs, ok, k.bytes, time.Now()) }()
		k.packs = packs
	}
	steps := []func() error{
		func() error { return s.copyHere(w, &k, here) },
		func() error { return s.between(w, k, here, there) },
		func() error { return s.copyThere(w, &k, there) },
	}
	if s.t.Op() == transfer.Read {
		steps[0], steps[2] = steps[2], steps[0]
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	ok = true
	return nil
}

// returnSlot frees a slot of the peer's ring. After a failed transfer, a failed link may still have bytes for the slot in
// flight. The slot stays unused until the peer has closed its end of that link.
func (a *Requests) returnSlot(p *peerRing, at uint64, ok bool) {
	if ok || a.session.Quiet() {
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
func (s *run) take(free <-chan uint64) uint64 {
	select {
	case a := <-free:
		return a
	case <-s.Stop():
	case <-s.requests.over:
	}
	return 0
}

func (s *run) copyHere(w *ringPair, k *chunk, at uint64) error {
	if w.here == nil {
		return nil
	}
	pieces := make([]Piece, len(k.ops))
	for i, o := range k.ops {
		pieces[i] = Piece{Addr: o.Local, Len: o.Len}
	}
	out := s.t.Op() == transfer.Write
	return s.copying(nil, func() (err error) {
		switch {
		case out && k.packs:
			k.packed, err = s.side.pack(w.here.ring, at, int(k.LocalDev), pieces, s.ends())
			return err
		case !out && k.packed > 0:
			return s.side.Copier.Unpack(w.here.ring, at, k.packed, int(k.LocalDev), pieces, s.ends())
		}
		return s.side.Copier.Copy(w.here.ring, at, int(k.LocalDev), pieces, out, s.ends())
	})
}

func (s *run) copyThere(w *ringPair, k *chunk, at uint64) error {
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
			f.Regions = append(f.Regions, s.regions[o.RRegion].Claim)
		}
		f.Pieces[i] = wire.CopyPiece{Region: n, Addr: o.Remote, Len: o.Len}
	}
	packed, err := s.requests.copyThere(f, k.packs && (f.Out || k.packed > 0), k.packed, k.bytes)
	if f.Out {
		k.packed = packed
	}
	return err
}

// between moves a chunk between the two rings, or between one ring and the memory of the other side.
func (s *run) between(w *ringPair, k chunk, here, there uint64) error {
	ops := k.ops
	if w.here != nil && w.there != nil {
		ops = []core.Op{{Len: k.bytes}}
		if k.packed > 0 {
			ops[0].Len = k.packed
		}
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
	return s.Move(local, remote, false)
}

// group holds operations of one class, with the regions that they name.
type group struct {
	transfer.Class
	ops []core.Op
}

// groups sorts operations by class. It copies nothing if all are of one class.
func groups(ops []core.Op, regions map[uint32]*region.Region) (list []*group) {
	at := map[transfer.Class]*group{}
	of := func(o *core.Op) transfer.Class {
		l, r := regions[o.LRegion], regions[o.RRegion]
		return transfer.Class{LocalMem: l.Mem, RemoteMem: r.Mem, LocalDev: l.Dev, RemoteDev: r.Dev}
	}
	first, same := of(&ops[0]), true
	for i := 1; i < len(ops) && same; i++ {
		same = of(&ops[i]) == first
	}
	if same {
		return []*group{{first, ops}}
	}
	for i := range ops {
		c := of(&ops[i])
		g := at[c]
		if g == nil {
			g = &group{Class: c}
			at[c], list = g, append(list, g)
		}
		g.ops = append(g.ops, ops[i])
	}
	return list
}

// chunk is the part of a group that fits one slot.
type chunk struct {
	*group
	ops    []core.Op
	bytes  uint64
	packs  bool   // the side that has the bytes packs them, if that gains
	packed uint64 // bytes of the packed chunk; 0: in clear
}

// cutter cuts a group into chunks. Limits of a chunk: slot bytes, and the pieces and regions that a frame can hold.
type cutter struct {
	g    *group
	slot uint64
	next int
	at   uint64 // bytes of ops[next] that are already in chunks
}

func (c *cutter) cut() (chunk, bool) {
	k := chunk{group: c.g}
	seen := map[uint32]struct{}{}
	for c.next < len(c.g.ops) && k.bytes < c.slot && len(k.ops) < wire.MaxPieces {
		o := c.g.ops[c.next]
		if _, ok := seen[o.RRegion]; !ok {
			if len(seen) == wire.MaxStageRegions {
				break
			}
			seen[o.RRegion] = struct{}{}
		}
		n := min(o.Len-c.at, c.slot-k.bytes)
		if n > 0 {
			k.ops = append(k.ops, core.Op{Local: o.Local + c.at, Remote: o.Remote + c.at, Len: n, LRegion: o.LRegion, RRegion: o.RRegion})
		}
		k.bytes += n
		if c.at += n; c.at == o.Len {
			c.next, c.at = c.next+1, 0
		}
	}
	return k, k.bytes > 0
}

package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/wire"
)

// staged is what a session of a peer has of staging.
type staged struct {
	ended chan struct{}  // closed when all has ended
	stop  chan struct{}  // closed with the session: copies end soon
	jobs  sync.WaitGroup // copies and rings being made; added to under target.mu while the session is there
	count int            // copies under way; under target.mu
	rings []*slots       // under target.mu
	asked map[ringKey]bool
}

// Stage has an initiator's wishes; each is done by a goroutine of its own.
func (h targetHandler) Stage(in *peer.In, f wire.Frame) error {
	if !h.e.enter() {
		return errClosing
	}
	defer h.e.leave()
	t := h.e.target(in)
	if t == nil {
		return nil // it is being closed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return nil
	}
	switch f := f.(type) {
	case *wire.RingReq:
		k := ringKey{f.Mem, f.Dev}
		if !t.e.regions.OnGPU(f.Dev) {
			t.in.Staged(&wire.Ring{ID: f.ID, Text: fmt.Sprintf("no memory of GPU %d is registered here", f.Dev)})
			return nil
		}
		if t.staged.asked[k] {
			return fmt.Errorf("it has a ring in memory %d of device %d", f.Mem, f.Dev)
		}
		if t.staged.asked == nil {
			t.staged.asked = map[ringKey]bool{}
		}
		t.staged.asked[k] = true
		t.staged.jobs.Go(func() { t.giveRing(f) })
	case *wire.Copy:
		if most := slotsOfRing * len(t.staged.rings); t.staged.count >= most {
			return fmt.Errorf("more copies at once than its %d slots", most)
		}
		t.staged.count++
		t.staged.jobs.Go(func() {
			text := ""
			if err := t.copy(f); err != nil {
				text = clip(err.Error())
			}
			t.mu.Lock()
			t.staged.count--
			t.mu.Unlock()
			t.in.Staged(&wire.Copied{ID: f.ID, Text: text})
		})
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), wire.MaxText)] }

// giveRing makes a ring and tells the peer.
func (t *target) giveRing(f *wire.RingReq) {
	device := stage.Host
	if f.Mem == region.VRAM {
		device = int(f.Dev)
	}
	l, err := t.e.stage.newSlots(device, int(f.Dev))
	if err == nil && !t.reaches(t.e.regions.Regions.Get(l.id)) {
		l.close()
		err = errors.New("no rail of this session takes the ring's memory; the log says why")
	}
	answer := &wire.Ring{ID: f.ID}
	t.mu.Lock()
	if err == nil {
		t.staged.rings = append(t.staged.rings, l) // also when the session is gone: close waits for us, and takes it
		answer.Range, answer.Slot = l.rng, l.size
	} else {
		answer.Text = clip(err.Error())
	}
	t.mu.Unlock()
	if err != nil {
		t.e.log.Warn("no ring for a peer's staged transfers", "peer", t.in.Agent(), "gpu", f.Dev, "err", err)
	}
	t.in.Staged(answer)
}

// reaches says that a link of the session is on a rail that has the region.
func (t *target) reaches(g *region.Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone || slices.ContainsFunc(t.links, func(l *link) bool { return l.up && g.Rails.Load()&(1<<l.rail.Index) != 0 })
}

// copy makes one copy between a ring and our memory.
func (t *target) copy(f *wire.Copy) error {
	var total uint64
	pieces := make([]stage.Piece, len(f.Pieces))
	for i, p := range f.Pieces {
		total += p.Len // 4096 times 4 GiB at most
		pieces[i] = stage.Piece{Addr: p.Addr, Len: p.Len}
	}
	l := t.ringAt(f.At, total)
	if l == nil {
		return fmt.Errorf("%d bytes at %#x are not in a slot of a ring of this session", total, f.At)
	}
	if len(pieces) == 0 {
		return errors.New("no pieces")
	}
	t.e.stage.copies.Add(1)
	regions, err := t.e.regions.HoldForCopy(f.Regions)
	if err != nil {
		return err
	}
	defer t.e.regions.Copied(regions)
	for i, p := range f.Pieces {
		if r := regions[p.Region]; r.Dev != regions[0].Dev || !r.Contains(p.Addr, p.Len) {
			return fmt.Errorf("piece %d, %#x+%d, is not inside its region %#x+%d, or of another GPU than the first", i, p.Addr, p.Len, r.Addr, r.Len)
		}
	}
	return t.e.stage.copier.Copy(l.ring, f.At, int(regions[0].Dev), pieces, f.Out, t.staged.stop)
}

// ringAt is the ring that has these bytes within one slot.
func (t *target) ringAt(at, n uint64) *slots {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.staged.rings {
		if off := at - l.rng.Addr; at >= l.rng.Addr && off < l.rng.Len && n <= l.size-off%l.size {
			return l
		}
	}
	return nil
}

// close ends the session's copies, then its rings, which nobody reaches any more. What a GPU does not end is left to a goroutine, with the
// rings. Without target.mu; the session is gone.
func (s *staged) close(patience time.Duration) {
	close(s.stop)
	go func() {
		s.jobs.Wait()
		for _, l := range s.rings {
			l.close()
		}
		s.rings = nil
		close(s.ended)
	}()
	s.await(patience)
}

func (s *staged) await(patience time.Duration) {
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}

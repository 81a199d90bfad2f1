package staging

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/wire"
)

// Initiator is the peer at the other end of a session in which we serve.
type Initiator interface {
	Agent() string
	Staged(f wire.Frame) // sends an answer: *wire.Ring or *wire.Copied
}

// ringKey says what memory a ring is in.
type ringKey struct {
	mem int32
	dev uint64
}

// Server is what a session of a peer has of staging: rings that the peer's transfers go over, and the copies that it asks for.
type Server struct {
	side    *Side
	in      Initiator
	reaches func(*region.Region) bool // a rail of the session has the region

	ended chan struct{}  // closed when all has ended
	stop  chan struct{}  // closed with the session: copies end soon
	jobs  sync.WaitGroup // copies and rings being made; added to under mu while the session is there

	mu    sync.Mutex
	gone  bool // Close was called
	count int  // copies under way
	rings []*slots
	asked map[ringKey]bool
}

// NewServer has no ring. reaches is called without any lock of the server's.
func NewServer(side *Side, in Initiator, reaches func(*region.Region) bool) *Server {
	return &Server{side: side, in: in, reaches: reaches, ended: make(chan struct{}), stop: make(chan struct{}), asked: map[ringKey]bool{}}
}

// Stage has an initiator's wishes, *wire.RingReq or *wire.Copy; each is done by a goroutine of its own. An error ends the session.
func (s *Server) Stage(f wire.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	switch f := f.(type) {
	case *wire.RingReq:
		k := ringKey{f.Mem, f.Dev}
		if !s.side.Regions.OnGPU(f.Dev) {
			s.in.Staged(&wire.Ring{ID: f.ID, Text: fmt.Sprintf("no memory of GPU %d is registered here", f.Dev)})
			return nil
		}
		if s.asked[k] {
			return fmt.Errorf("it has a ring in memory %d of device %d", f.Mem, f.Dev)
		}
		s.asked[k] = true
		s.jobs.Go(func() { s.giveRing(f) })
	case *wire.Copy:
		if most := slotsOfRing * len(s.rings); s.count >= most {
			return fmt.Errorf("more copies at once than its %d slots", most)
		}
		s.count++
		s.jobs.Go(func() {
			text := ""
			if err := s.copy(f); err != nil {
				text = clip(err.Error())
			}
			s.mu.Lock()
			s.count--
			s.mu.Unlock()
			s.in.Staged(&wire.Copied{ID: f.ID, Text: text})
		})
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), wire.MaxText)] }

// giveRing makes a ring and tells the peer.
func (s *Server) giveRing(f *wire.RingReq) {
	device := stage.Host
	if f.Mem == region.VRAM {
		device = int(f.Dev)
	}
	l, err := s.side.newSlots(device, int(f.Dev))
	if err == nil && !s.reaches(s.side.Regions.Regions.Get(l.id)) {
		l.close()
		err = errors.New("no rail of this session takes the ring's memory; the log says why")
	}
	answer := &wire.Ring{ID: f.ID}
	s.mu.Lock()
	if err == nil {
		s.rings = append(s.rings, l) // also when the session is gone: close waits for us, and takes it
		answer.Range, answer.Slot = l.rng, l.size
	} else {
		answer.Text = clip(err.Error())
	}
	s.mu.Unlock()
	if err != nil {
		s.side.Log.Warn("no ring for a peer's staged transfers", "peer", s.in.Agent(), "gpu", f.Dev, "err", err)
	}
	s.in.Staged(answer)
}

// copy makes one copy between a ring and our memory.
func (s *Server) copy(f *wire.Copy) error {
	var total uint64
	pieces := make([]stage.Piece, len(f.Pieces))
	for i, p := range f.Pieces {
		total += p.Len // 4096 times 4 GiB at most
		pieces[i] = stage.Piece{Addr: p.Addr, Len: p.Len}
	}
	l := s.ringAt(f.At, total)
	if l == nil {
		return fmt.Errorf("%d bytes at %#x are not in a slot of a ring of this session", total, f.At)
	}
	if len(pieces) == 0 {
		return errors.New("no pieces")
	}
	s.side.copies.Add(1)
	regions, err := s.side.Regions.HoldForCopy(f.Regions)
	if err != nil {
		return err
	}
	defer s.side.Regions.Copied(regions)
	for i, p := range f.Pieces {
		if r := regions[p.Region]; r.Dev != regions[0].Dev || !r.Contains(p.Addr, p.Len) {
			return fmt.Errorf("piece %d, %#x+%d, is not inside its region %#x+%d, or of another GPU than the first", i, p.Addr, p.Len, r.Addr, r.Len)
		}
	}
	return s.side.Copier.Copy(l.ring, f.At, int(regions[0].Dev), pieces, f.Out, s.stop)
}

// ringAt is the ring that has these bytes within one slot.
func (s *Server) ringAt(at, n uint64) *slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.rings {
		if off := at - l.rng.Addr; at >= l.rng.Addr && off < l.rng.Len && n <= l.size-off%l.size {
			return l
		}
	}
	return nil
}

// Close ends the session's copies, then its rings, which nobody reaches any more. What a GPU does not end is left to a goroutine, with the
// rings. It is called once.
func (s *Server) Close(patience time.Duration) {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	close(s.stop)
	go func() {
		s.jobs.Wait()
		for _, l := range s.rings {
			l.close()
		}
		s.rings = nil
		close(s.ended)
	}()
	s.Await(patience)
}

// Await waits, so long at most, for the end that Close began.
func (s *Server) Await(patience time.Duration) {
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}

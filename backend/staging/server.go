package staging

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// ringKey identifies the memory of a ring.
type ringKey struct {
	mem int32
	dev uint64
}

// Server is the staging state of a session at its target: the rings for the peer's transfers, and the copies that the peer
// requests.
type Server struct {
	side    *Side
	in      *peer.In
	reaches func(*region.Region) bool // reports whether a rail of the session has the region

	ended chan struct{}  // closed once all jobs and rings have ended
	stop  chan struct{}  // closed with the session: copies end soon
	jobs  sync.WaitGroup // copies, and rings being made; added under mu until Close

	mu    sync.Mutex
	gone  bool // Close was called
	count int  // copies in progress
	rings []*localRing
	asked map[ringKey]bool
}

// NewServer makes a server without rings. reaches is called without a lock of the server.
func NewServer(side *Side, in *peer.In, reaches func(*region.Region) bool) *Server {
	return &Server{side: side, in: in, reaches: reaches, ended: make(chan struct{}), stop: make(chan struct{}), asked: map[ringKey]bool{}}
}

// Stage handles a request of the initiator, *wire.RingReq, *wire.Copy or *wire.PackedCopy, in its own goroutine. An error ends the session.
func (s *Server) Stage(f wire.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	switch f := f.(type) {
	case *wire.RingReq:
		k := ringKey{f.Mem, f.For.Dev}
		if !s.side.Regions.OnGPU(f.For) {
			s.in.Staged(&wire.Ring{ID: f.ID, Text: fmt.Sprintf("memory %#x+%d of GPU %d is not registered here", f.For.Addr, f.For.Len, f.For.Dev), Code: wire.CodeMemory})
			return nil
		}
		if s.asked[k] {
			return fmt.Errorf("the initiator already has bounce buffers in memory %d of device %d", k.mem, k.dev)
		}
		s.asked[k] = true
		s.jobs.Go(func() { s.answerRingReq(f) })
	case *wire.Copy:
		return s.begin(f, false, 0)
	case *wire.PackedCopy:
		return s.begin(&f.Copy, true, uint64(f.Packed))
	}
	return nil
}

// begin begins a copy and answers it. With mu held.
func (s *Server) begin(f *wire.Copy, packs bool, packed uint64) error {
	if most := slotsOfRing * len(s.rings); s.count >= most {
		s.side.Limits.Hit(limits.StagedCopies)
		return fmt.Errorf("more copies at once than the %d slots of the session", most)
	}
	s.count++
	s.jobs.Go(func() { //limit:staged_copies
		answer := wire.Copied{ID: f.ID}
		made, err := s.copy(f, packs, packed)
		if err != nil {
			answer.Text = clip(err.Error())
			if gpu.Is(err, gpu.Unmapped) {
				answer.Code = wire.CodeUnmapped
			}
		}
		s.mu.Lock()
		s.count--
		s.mu.Unlock()
		if packs {
			s.in.Staged(&wire.PackedCopied{Copied: answer, Packed: uint32(made)})
			return
		}
		s.in.Staged(&answer)
	})
	return nil
}

func clip(s string) string { return s[:min(len(s), wire.MaxText)] }

// newPeerRing makes a ring for the session.
func (s *Server) newPeerRing(f *wire.RingReq) (*localRing, error) {
	device := Host
	if f.Mem == region.VRAM {
		device = int(f.For.Dev)
	}
	if err := s.side.takeRoom(s.in, device); err != nil {
		return nil, err
	}
	l, err := s.side.newRing(device, int(f.For.Dev)) //limit:staging_rings
	if err != nil {
		s.side.leaveRoom(s.in, device)
		return nil, err
	}
	if !s.reaches(s.side.Regions.Regions.Get(l.id)) {
		s.free(l)
		return nil, errors.New("no rail of this session takes the bounce buffers' memory; the log says why")
	}
	return l, nil
}

// free frees a ring of the session. Memory that stays allocated stays counted.
func (s *Server) free(l *localRing) {
	if l.close() {
		s.side.leaveRoom(s.in, l.device())
	}
}

// answerRingReq makes a ring and sends the answer to the peer. Where all memory for rings is taken, the peer may ask again.
func (s *Server) answerRingReq(f *wire.RingReq) {
	l, err := s.newPeerRing(f)
	answer := &wire.Ring{ID: f.ID}
	if err == nil && l.device() == Host && s.side.packRoom(int(f.For.Dev), s.in.Agent(), s.stop) {
		l.packs, answer.Code = true, wire.CodePacks
	}
	s.mu.Lock()
	if err == nil {
		s.rings = append(s.rings, l) // also after Close: its goroutine waits for this job, then closes the ring
		answer.Range, answer.Slot = s.side.Regions.Regions.Get(l.id).Claim, l.size
	} else {
		answer.Text = clip(err.Error())
		delete(s.asked, ringKey{f.Mem, f.For.Dev}) // the initiator may ask again
	}
	if full := (*fullError)(nil); errors.As(err, &full) {
		answer.Code = wire.CodeBusy
	}
	s.mu.Unlock()
	if err != nil {
		s.side.warnOf(s.in, "no bounce buffers made for a peer", "gpu", f.For.Dev, "err", err)
	}
	s.in.Staged(answer)
}

// copy makes one copy between a ring and local memory. packs: the slot has a packed chunk of so many bytes, or may get one; made is its length.
func (s *Server) copy(f *wire.Copy, packs bool, packed uint64) (made uint64, err error) {
	var total uint64
	pieces := make([]Piece, len(f.Pieces))
	for i, p := range f.Pieces {
		total += p.Len // at most 4096 times 4 GiB
		pieces[i] = Piece{Addr: p.Addr, Len: p.Len}
	}
	l := s.ringAt(f.At, total)
	if l == nil {
		return 0, fmt.Errorf("%d bytes at %#x are not in one bounce buffer of this session", total, f.At)
	}
	if len(pieces) == 0 {
		return 0, errors.New("no pieces")
	}
	if packs && (!l.packs || packed > total || f.At%packAlign != 0) {
		return 0, fmt.Errorf("a compressed copy of %d bytes for %d at %#x, which these bounce buffers do not take", packed, total, f.At)
	}
	s.side.copies.Add(1)
	need := option.PeersWrite
	if f.Out {
		need = option.PeersRead
	}
	regions, err := s.side.Regions.HoldForCopy(f.Regions, need)
	if err != nil {
		return 0, err
	}
	defer s.side.Regions.Copied(regions)
	for i, p := range f.Pieces {
		if r := regions[p.Region]; r.Dev != regions[0].Dev || !r.Contains(p.Addr, p.Len) {
			return 0, fmt.Errorf("piece %d, %#x+%d, is outside of its region %#x+%d, or on another GPU than the first piece", i, p.Addr, p.Len, r.Addr, r.Len)
		}
	}
	device, ends := int(regions[0].Dev), Ends{Stop: s.stop}
	switch {
	case packs && f.Out:
		return s.side.pack(l.ring, f.At, device, pieces, ends)
	case packs:
		return 0, s.side.Copier.Unpack(l.ring, f.At, packed, device, pieces, ends)
	}
	return 0, s.side.Copier.Copy(l.ring, f.At, device, pieces, f.Out, ends)
}

// Counts returns the rings of the session, and its copies in progress. After Close there are none.
func (s *Server) Counts() (rings, copies int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone { // rings belongs to Close's goroutine
		return 0, 0
	}
	return len(s.rings), s.count
}

// ringAt returns the ring that holds these bytes within one slot.
func (s *Server) ringAt(at, n uint64) *localRing {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.rings {
		if off := at - l.rng.Addr; at >= l.rng.Addr && off < l.rng.Len && n <= l.size-off%l.size {
			return l
		}
	}
	return nil
}

// Close ends the session's copies and then frees its rings, which no peer reaches any more. It waits for that, at most for
// patience. If a GPU does not end a copy, a goroutine keeps waiting, and the rings stay until then. Close is called once.
func (s *Server) Close(patience time.Duration) {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	close(s.stop)
	go func() {
		s.jobs.Wait()
		for _, l := range s.rings {
			s.free(l)
		}
		s.rings = nil
		close(s.ended)
	}()
	s.AwaitClosed(patience)
}

// AwaitClosed waits for the end that Close began, at most for patience.
func (s *Server) AwaitClosed(patience time.Duration) {
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}

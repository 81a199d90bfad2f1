package rank

import (
	"fmt"
	"sync"
	"time"

	"gorail/gorail/bench/memory"
	"gorail/gorail/measure"
	"gorail/internal/pattern"
	"gorail/nixlapi"
)

const (
	Further = 1000    // regions that are registered beside transfers
	most    = 8 << 30 // their bytes at most
)

// Second is what another thread does while requests are in flight.
type Second int

// What it may do. Computing takes a core, as registering does, and nothing else.
const (
	Nothing Second = iota
	Computes
	Registers
)

// StreamOut is what Stream did.
type StreamOut struct {
	Bytes     uint64
	Wall, Gap time.Duration // Gap: the longest time without a completion
	RegisterOut
}

// RegisterOut is what a thread that registers did. Times are in nanoseconds.
type RegisterOut struct {
	Regions, Failed int           // registered and deregistered; calls that failed
	One, All        measure.Times // registrations of one region; of all in one call
	Why             string        // of the first failure
}

// Add adds the times and counts of another time.
func (o *RegisterOut) Add(p RegisterOut) {
	if o.Why == "" {
		o.Why = p.Why
	}
	o.Regions, o.Failed = o.Regions+p.Regions, o.Failed+p.Failed
	o.One.Add(p.One)
	o.All.Add(p.All)
}

// Stream keeps all requests in flight for a time. Another thread of the same agent may do something else meanwhile.
func (s *Server) Stream(in Args, out *StreamOut) error {
	defer s.mems[0].Hold()()
	var all nixlapi.Work
	var sizes []uint64
	for _, list := range s.xfers {
		for _, f := range list {
			all.Xfers, sizes = append(all.Xfers, f.Xfer), append(sizes, f.size)
		}
	}
	if err := s.further(); err != nil {
		return err
	}
	var second sync.WaitGroup
	if in.Second != Nothing {
		second.Go(func() { _ = s.Beside(in, &out.RegisterOut) })
	}
	done := nixlapi.Bench([]nixlapi.Work{all}, nixlapi.BenchArgs{Time: in.Time, Limit: in.Limit})[0]
	second.Wait()
	for i, n := range done.Posts {
		out.Bytes += n * sizes[i]
	}
	out.Wall, out.Gap = done.Wall, done.Gap
	return done.Status.Err("a transfer")
}

// further makes the memory of further regions: those of the layout in turn, or parts of the arena, and shrunk if they are more than most together.
func (s *Server) further() (err error) {
	if s.more != nil {
		return nil
	}
	total, sizes := uint64(0), make([]uint64, Further)
	for i := range sizes {
		if sizes[i] = uint64(len(s.bytes[i%len(s.bytes)])); s.in.Arena {
			sizes[i] = s.in.Model.Bytes(s.in.Scale) / Further
		}
		total += sizes[i]
	}
	at := uint64(0)
	for i, n := range sizes {
		n = max(4096, n/(total/most+1)&^4095)
		sizes[i], at = n, at+n
	}
	if s.more, err = memory.Alloc(s.in.Memory, s.in.GPU, at); err != nil {
		return fmt.Errorf("memory of further regions: %w", err)
	}
	at = 0
	for _, n := range sizes {
		s.ranges, at = append(s.ranges, s.more.Desc(at, n)), at+n
	}
	return nil
}

// Beside does what in.Second says for a time. The first call makes the memory of further regions.
func (s *Server) Beside(in Args, out *RegisterOut) error {
	if err := s.further(); err != nil {
		return err
	}
	end := measure.Now() + in.Time
	switch in.Second {
	case Registers:
		s.register(end, out)
	case Computes:
		for some := make([]byte, 1<<20); measure.Now() < end; {
			pattern.Fill(some, 1, 0)
		}
	}
	return nil
}

// register registers further regions and takes them back until a time: in turn each in a call of its own, and all in one call.
func (s *Server) register(end time.Duration, out *RegisterOut) {
	defer s.mems[0].Hold()()
	for turn := 0; measure.Now() < end; turn++ {
		times, n := &out.One, 1
		if turn%2 == 1 {
			times, n = &out.All, len(s.ranges)
		}
		var made [][]nixlapi.Desc
		for at := 0; at < len(s.ranges) && (at == 0 || measure.Now() < end); at += n {
			some, began := s.ranges[at:at+n], measure.Now()
			if out.note(s.agent.Register(s.more.Kind, some, s.back)) {
				made = append(made, some)
				times.Record(measure.Now() - began)
			}
		}
		for _, some := range made {
			if out.note(s.agent.Deregister(s.more.Kind, some, s.back)) {
				out.Regions += n
			}
		}
	}
}

// note counts a call that failed, and keeps the first reason.
func (o *RegisterOut) note(err error) (ok bool) {
	if err == nil {
		return true
	}
	if o.Failed++; o.Why == "" {
		o.Why = err.Error()
	}
	return false
}

package stage

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"gorail/backend/gpu"
)

// Piece is memory of a GPU, in bytes.
type Piece struct{ Addr, Len uint64 }

// stream is a lane whose jobs anybody may post: a lane wants one thread at a time.
type stream struct {
	drv  *gpu.Driver
	lane *gpu.Lane

	mu   sync.Mutex
	idle []*gpu.Job
}

func (s *stream) close() {
	for _, j := range s.idle {
		_ = j.Free()
	}
	s.lane.Close()
}

// Copy copies between the pieces, all of one GPU, and the ring, where they lie one behind the other from at on (an address). out: to the
// ring. It returns when every byte is in place, or when nothing of it touches memory any more: stop was closed (gpu.Cancelled), or the
// driver's error. The pieces' bytes must fit the ring.
func (c *Copier) Copy(r *Ring, at uint64, device int, pieces []Piece, out bool, stop <-chan struct{}) error {
	l := lane{device, gpu.ToHost}
	if r.device != Host {
		l.peer = ofOurs
	}
	s, err := c.stream(l)
	if err != nil {
		return err
	}
	ops := s.drv.Ops(len(pieces))
	if ops == nil {
		return fmt.Errorf("GPU %d: no pinned memory for %d pieces", device, len(pieces))
	}
	defer s.drv.FreeOps(ops)
	for i, p := range pieces {
		ops[i] = gpu.Op{Local: p.Addr, Remote: at, Len: p.Len}
		at += p.Len
	}
	j, err := s.post(gpu.Work{Ops: ops, Write: out})
	if err != nil {
		return fmt.Errorf("GPU %d: %w", device, err)
	}
	err = s.wait(j, stop)
	s.mu.Lock()
	s.idle = append(s.idle, j)
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("GPU %d: %w", device, err)
	}
	return nil
}

func (s *stream) post(w gpu.Work) (*gpu.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var j *gpu.Job
	if n := len(s.idle); n > 0 {
		j, s.idle = s.idle[n-1], s.idle[:n-1]
	} else {
		var err error
		if j, err = s.lane.Job(); err != nil {
			return nil, err
		}
	}
	if err := j.Post(w); err != nil {
		s.idle = append(s.idle, j)
		return nil, err
	}
	return j, nil
}

// A copy of a slot takes 10 to 100 us: a thread that looks on costs less than one that is woken.
const (
	looks = 200 * time.Microsecond
	nap   = 50 * time.Microsecond
)

func (s *stream) wait(j *gpu.Job, stop <-chan struct{}) error {
	for since := time.Now(); ; {
		s.mu.Lock()
		ended, err := j.Poll()
		s.mu.Unlock()
		if ended {
			return err
		}
		select {
		case <-stop:
			j.Cancel()
			stop = nil
		default:
		}
		if time.Since(since) < looks {
			runtime.Gosched()
		} else {
			time.Sleep(nap)
		}
	}
}

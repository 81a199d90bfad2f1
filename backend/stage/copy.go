package stage

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/plan"
)

// Piece is memory of a GPU, in bytes.
type Piece struct{ Addr, Len uint64 }

// copyStream is a stream whose jobs anybody may post: a stream wants one thread at a time.
type copyStream struct {
	drv    *gpu.Driver
	stream *gpu.Stream

	mu   sync.Mutex
	idle []*gpu.Job
}

func (s *copyStream) close() {
	for _, j := range s.idle {
		_ = j.Free()
	}
	s.stream.Close()
}

// Copy copies between the pieces, all of one GPU, and the ring, where they lie one behind the other from at on (an address). out: to the
// ring. It returns when every byte is in place, or when nothing of it touches memory any more: stop was closed (gpu.Cancelled), or the
// driver's error. The pieces' bytes must fit the ring.
func (c *Copier) Copy(r *Ring, at uint64, device int, pieces []Piece, out bool, stop <-chan struct{}) error {
	l := streamKey{device, gpu.ToHost}
	if r.device != Host {
		l.peer = ofOurs
	}
	return c.run(l, len(pieces), out, stop, func(ops []gpu.Op) {
		for i, p := range pieces {
			ops[i] = gpu.Op{Local: p.Addr, Remote: at, Len: p.Len}
			at += p.Len
		}
	})
}

// Within copies between memory of a GPU and pinned memory of the host, all of this process: from local to remote (write) or back. As Copy
// otherwise.
func (c *Copier) Within(device int, list []plan.Op, write bool, stop <-chan struct{}) error {
	return c.run(streamKey{device, gpu.ToHost}, len(list), write, stop, func(ops []gpu.Op) {
		for i, o := range list {
			ops[i] = gpu.Op{Local: o.Local, Remote: o.Remote, Len: o.Len}
		}
	})
}

// Pin makes host memory usable by Within; Unpin of the same range ends it. A GPU must be in use. Implements cuMemHostRegister: milliseconds,
// or for many GiB seconds.
func (c *Copier) Pin(addr, size uint64) error {
	d, err := c.gpus.Open()
	if err != nil {
		return err
	}
	return d.Pin(pointer(addr), size)
}

// Unpin ends one Pin; no copy of the range may be under way. Implements cuMemHostUnregister.
func (c *Copier) Unpin(addr, size uint64) error {
	d, err := c.gpus.Open()
	if err != nil {
		return err
	}
	return d.Unpin(pointer(addr), size)
}

// pointer of memory that is not Go's.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func (c *Copier) run(l streamKey, n int, write bool, stop <-chan struct{}, fill func([]gpu.Op)) error {
	select {
	case <-stop:
		return gpu.Cancelled
	default:
	}
	s, err := c.stream(l)
	if err != nil {
		return err
	}
	ops := s.drv.Ops(n)
	if ops == nil {
		return fmt.Errorf("GPU %d: no pinned memory for %d pieces", l.device, n)
	}
	defer s.drv.FreeOps(ops)
	fill(ops)
	j, err := s.post(gpu.Work{Ops: ops, Write: write, Blocks: c.blocks})
	if err != nil {
		return fmt.Errorf("GPU %d: %w", l.device, err)
	}
	err = s.wait(j, stop)
	s.mu.Lock()
	s.idle = append(s.idle, j)
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("GPU %d: %w", l.device, err)
	}
	return nil
}

func (s *copyStream) post(w gpu.Work) (*gpu.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var j *gpu.Job
	if n := len(s.idle); n > 0 {
		j, s.idle = s.idle[n-1], s.idle[:n-1]
	} else {
		var err error
		if j, err = s.stream.Job(); err != nil {
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
	nap   = 20 * time.Microsecond
)

func (s *copyStream) wait(j *gpu.Job, stop <-chan struct{}) error {
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
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: int64(nap)}, nil) // time.Sleep's shortest is a millisecond where nothing else runs
		}
	}
}

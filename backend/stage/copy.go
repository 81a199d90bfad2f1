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

// Piece is a range of GPU memory, in bytes.
type Piece struct{ Addr, Len uint64 }

// copyStream is a GPU stream that any thread may post to. Its mutex serializes them, because a stream takes one thread at a
// time.
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

// Copy copies between the pieces, all of one GPU, and the ring. In the ring, the bytes lie consecutively from address at. out:
// to the ring. Copy returns when all bytes are in place, or on an error. The errors are gpu.Cancelled (stop was closed) and
// those of the driver. After an error, the copy no longer touches memory. The pieces' bytes must fit the ring.
func (c *Copier) Copy(r *Ring, at uint64, device int, pieces []Piece, out bool, stop <-chan struct{}) error {
	l := streamKey{device, gpu.ToHost}
	if r.device != Host {
		l.peer = ownStream
	}
	return c.run(l, len(pieces), out, false, stop, func(ops []gpu.Op) {
		for i, p := range pieces {
			ops[i] = gpu.Op{Local: p.Addr, Remote: at, Len: p.Len}
			at += p.Len
		}
	})
}

// Within copies between GPU memory and pinned host memory of this process: from local to remote (write) or back. remote: the GPU
// memory is the remote one. Otherwise it works like Copy.
func (c *Copier) Within(device int, list []plan.Op, write, remote bool, stop <-chan struct{}) error {
	return c.run(streamKey{device, gpu.ToHost}, len(list), write, remote, stop, func(ops []gpu.Op) {
		for i, o := range list {
			ops[i] = gpu.Op{Local: o.Local, Remote: o.Remote, Len: o.Len}
		}
	})
}

// Pin makes host memory usable by Within, until Unpin of the same range. A GPU must be in use. Pin takes milliseconds; for many
// GiB, seconds. Implements cuMemHostRegister.
func (c *Copier) Pin(addr, size uint64) error {
	d, err := c.gpus.Open()
	if err != nil {
		return err
	}
	return d.Pin(pointer(addr), size)
}

// Unpin ends one Pin. No copy of the range may be in progress. Implements cuMemHostUnregister.
func (c *Copier) Unpin(addr, size uint64) error {
	d, err := c.gpus.Open()
	if err != nil {
		return err
	}
	return d.Unpin(pointer(addr), size)
}

// pointer converts an address outside of Go's heap.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func (c *Copier) run(l streamKey, n int, write, remote bool, stop <-chan struct{}, fill func([]gpu.Op)) error {
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
	if err := s.drv.MappedOps(l.device, ops, remote, write == remote); err != nil { // before a kernel touches it
		return fmt.Errorf("GPU %d: %w", l.device, err)
	}
	j, err := s.post(gpu.Work{Ops: ops, Write: write, How: c.how.How, Blocks: c.how.Blocks})
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

// A copy of a slot takes 10 to 100 us. For that long, polling costs less than a wakeup.
const (
	pollFor   = 200 * time.Microsecond
	pollPause = 20 * time.Microsecond
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
		if time.Since(since) < pollFor {
			runtime.Gosched()
		} else {
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: int64(pollPause)}, nil) // the shortest time.Sleep is a millisecond on an idle process
		}
	}
}

package staging

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/region"
)

// Copies between GPU memory and rings. A ring is memory that rails reach: pinned host memory, or GPU memory that
// peers can map. See docs/gpu.md, "Staging".

// Copier holds the driver and the streams of staging. Its methods are safe for concurrent use.
type Copier struct {
	gpus     *gpu.LazyDriver
	how      gpu.How
	patience atomic.Int64 // ns

	mu      sync.Mutex
	streams map[streamKey]*copyStream
	making  map[makingKey]*making
	closed  bool

	calls sync.WaitGroup // makings in progress; added under mu until Close
}

// making is a stream, or its room for packing, that a goroutine makes: the driver may have to translate kernels first, and no one can end that.
type making struct {
	done chan struct{} // closed once it has ended
	err  error         // valid after done
}

type makingKey struct {
	streamKey
	room uint64 // bytes; 0: the stream
}

// streamKey identifies a stream: of one GPU, to host memory or to the same GPU.
type streamKey struct{ device, peer int }

// ownStream is the peer number of streams within a GPU. It differs from the GPU's own number: provider/shm uses that one and
// polls it under its lock.
const ownStream = -2

// patience is as the default of xfer_timeout, for which a peer waits for our answer.
const patience = 30 * time.Second

// New makes a Copier. It loads the driver at path at first use and touches no GPU before. how sets how
// it copies.
func New(path string, how gpu.How) *Copier {
	c := &Copier{gpus: gpu.NewLazyDriver(path, 0), how: how, streams: map[streamKey]*copyStream{}, making: map[makingKey]*making{}}
	c.SetPatience(patience)
	return c
}

// SetPatience bounds how long a copy waits for the driver to translate the copy kernel. Packing waits for a third of it, and then is not done.
func (c *Copier) SetPatience(most time.Duration) { c.patience.Store(int64(most)) }

// Check checks that [addr, addr+size) is memory of that GPU, and retains the GPU's context. The error is that of a
// registration. It wraps provider.ErrNotThere if the descriptor is wrong. Implements cuPointerGetAttributes.
func (c *Copier) Check(addr, size uint64, device int) error {
	_, err := c.gpus.Look("staging", addr, size, device)
	return err
}

// Identity is a number for what is mapped in a range of GPU memory; 0: not all of it is. See gpu.Driver.Identity.
func (c *Copier) Identity(addr, size uint64) uint64 {
	d, err := c.gpus.Open()
	if err != nil {
		return 0
	}
	return d.Identity(addr, size)
}

// Address is the address of a GPU on the PCI bus, as sysfs writes it; "": unknown.
func (c *Copier) Address(device int) string {
	d, err := c.gpus.Open()
	if err != nil {
		return ""
	}
	info, _ := d.Device(device) // else empty
	return info.PCI
}

// Registering lets the driver be asked once about a range until end is called; see gpu.Driver.Registering.
func (c *Copier) Registering(addr, size uint64) (end func()) {
	d, err := c.gpus.Open()
	if err != nil { // Check gives the error
		return func() {}
	}
	return d.Registering(addr, size)
}

// Driver is what registrations ask the driver.
func (c *Copier) Driver() region.GPU {
	return region.GPU{Registering: c.Registering, Check: c.Check, Identity: c.Identity, Pin: c.Pin, Unpin: c.Unpin, Address: c.Address}
}

// Close closes the driver. No copy may be in progress, and all Rings must be freed. Close waits for kernels that the driver translates.
func (c *Copier) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.close()
	}
	clear(c.streams)
	return c.gpus.Close()
}

// stream returns the stream of a GPU, and makes it at first use. The errors are those of make, and of the driver.
func (c *Copier) stream(l streamKey, stop <-chan struct{}) (*copyStream, error) {
	d, err := c.gpus.Open()
	if err != nil {
		return nil, err
	}
	if s := c.made(l); s != nil {
		return s, nil
	}
	err = c.make(makingKey{l, 0}, stop, time.Duration(c.patience.Load()), func() error {
		if c.made(l) != nil {
			return nil
		}
		g, err := d.Stream(l.device, l.peer)
		if err != nil {
			return fmt.Errorf("GPU %d: create a stream: %w", l.device, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.streams[l] = &copyStream{drv: d, stream: g}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.made(l), nil
}

func (c *Copier) made(l streamKey) *copyStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[l]
}

var errTranslating = errors.New("the driver has not yet translated the kernel")

// make runs f, once for all that want the same meanwhile, and waits for its end. f goes on when stop is closed (gpu.Cancelled), or after most
// (errTranslating).
func (c *Copier) make(k makingKey, stop <-chan struct{}, most time.Duration, f func() error) error {
	c.mu.Lock()
	m := c.making[k]
	if m == nil && !c.closed {
		m = &making{done: make(chan struct{})}
		c.making[k] = m
		c.calls.Go(func() {
			m.err = f()
			c.mu.Lock()
			delete(c.making, k)
			c.mu.Unlock()
			close(m.done)
		})
	}
	c.mu.Unlock()
	if m == nil {
		return gpu.Cancelled
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-m.done:
		return m.err
	case <-stop:
		return gpu.Cancelled
	case <-timer.C:
		return fmt.Errorf("GPU %d: %w within %v", k.device, errTranslating, most)
	}
}

// Piece is a range of GPU memory, in bytes.
type Piece struct{ Addr, Len uint64 }

// copyStream is a GPU stream that any thread may post to. Its mutex serializes them, because a stream takes one thread at a
// time.
type copyStream struct {
	drv    *gpu.Driver
	stream *gpu.Stream

	mu     sync.Mutex
	idle   []*gpu.Job
	closed bool // jobs that end are freed

	packs packRoom
}

func (s *copyStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, j := range s.idle {
		_ = j.Free()
	}
	s.idle = nil
	s.stream.Close()
}

// ErrUnfinished means that a GPU has not ended a copy, which may still read and write memory. The ring stays allocated until the copy ends.
var ErrUnfinished = errors.New("the GPU has not ended a copy within a second: its memory may still be read and written")

// Ends are the reasons to end a copy early: Stop cancels it, and Abandon, closed after Stop, makes it return ErrUnfinished if the GPU does
// not end it either. Both may be nil.
type Ends struct{ Stop, Abandon <-chan struct{} }

// Copy copies between the pieces, all of one GPU, and the ring. In the ring, the bytes lie consecutively from address at. out:
// to the ring. Copy returns when all bytes are in place, or on an error. The errors are gpu.Cancelled (Stop was closed), ErrUnfinished, and
// those of the driver. After an error but ErrUnfinished, the copy no longer touches memory. The pieces' bytes must fit the ring.
func (c *Copier) Copy(r *Ring, at uint64, device int, pieces []Piece, out bool, ends Ends) error {
	l := streamKey{device, gpu.ToHost}
	if r.device != Host {
		l.peer = ownStream
	}
	_, err := c.run(l, &r.copies, len(pieces), gpu.Work{Write: out}, false, ends, func(ops []gpu.Op) {
		for i, p := range pieces {
			ops[i] = gpu.Op{Local: p.Addr, Remote: at, Len: p.Len}
			at += p.Len
		}
	})
	return err
}

// Within copies between GPU memory and pinned host memory of this process: from local to remote (write) or back. remote: the GPU
// memory is the remote one. Otherwise it works like Copy.
func (c *Copier) Within(device int, list []core.Op, write, remote bool, ends Ends) error {
	_, err := c.run(streamKey{device, gpu.ToHost}, new(atomic.Int32), len(list), gpu.Work{Write: write}, remote, ends, func(ops []gpu.Op) {
		for i, o := range list {
			ops[i] = gpu.Op{Local: o.Local, Remote: o.Remote, Len: o.Len}
		}
	})
	return err
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

// mapped is gpu.Driver.MappedOps, which it asks again while the driver makes or frees memory of ours. gpu.Cancelled: ends.Stop was closed.
func (s *copyStream) mapped(device int, ops []gpu.Op, remote, write bool, ends Ends) error {
	for {
		err := s.drv.MappedOps(device, ops, remote, write)
		if !errors.Is(err, gpu.Busy) {
			return err
		}
		select {
		case <-ends.Stop:
			return gpu.Cancelled
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// run makes a copy of n operations, which fill sets. running counts copies that have not ended. packed: as gpu.Job.Packed.
func (c *Copier) run(l streamKey, running *atomic.Int32, n int, w gpu.Work, remote bool, ends Ends, fill func([]gpu.Op)) (packed uint64, err error) {
	select {
	case <-ends.Stop:
		return 0, gpu.Cancelled
	default:
	}
	s, err := c.stream(l, ends.Stop)
	if err != nil {
		return 0, err
	}
	ops := s.drv.Ops(n)
	if ops == nil {
		return 0, fmt.Errorf("GPU %d: no pinned memory for %d pieces", l.device, n)
	}
	fill(ops)
	if err := s.mapped(l.device, ops, remote, w.Write == remote, ends); err != nil { // before a kernel touches it
		s.drv.FreeOps(ops)
		return 0, fmt.Errorf("GPU %d: %w", l.device, err)
	}
	w.Ops, w.How = ops, c.how
	j, err := s.post(w)
	if err != nil {
		s.drv.FreeOps(ops)
		return 0, fmt.Errorf("GPU %d: %w", l.device, err)
	}
	running.Add(1)
	ended := func() {
		s.drv.FreeOps(ops)
		s.done(j)
		running.Add(-1)
	}
	if err = s.wait(j, ends); errors.Is(err, ErrUnfinished) {
		go func() {
			s.outlive(j)
			ended()
		}()
	} else {
		packed = j.Packed()
		ended()
	}
	if err != nil {
		return 0, fmt.Errorf("GPU %d: %w", l.device, err)
	}
	return packed, nil
}

// done takes back a job that has ended.
func (s *copyStream) done(j *gpu.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = j.Free()
		return
	}
	s.idle = append(s.idle, j)
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

func (s *copyStream) poll(j *gpu.Job) (ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.Poll()
}

// An abandoned copy is polled so often before it is given up: a count, because a starved process may not run for a second.
const (
	lastPolls = 100
	lastPause = 10 * time.Millisecond
)

func (s *copyStream) wait(j *gpu.Job, ends Ends) error {
	stop, abandon := ends.Stop, (<-chan struct{})(nil)
	pause, left := pollPause, -1
	for since := time.Now(); ; {
		if ended, err := s.poll(j); ended {
			return err
		}
		select {
		case <-stop:
			j.Cancel()
			stop, abandon = nil, ends.Abandon
		case <-abandon:
			abandon, pause, left = nil, lastPause, lastPolls
		default:
		}
		switch {
		case left == 0:
			return ErrUnfinished
		case left > 0:
			left--
		case time.Since(since) < pollFor:
			runtime.Gosched()
			continue
		}
		_ = syscall.Nanosleep(&syscall.Timespec{Nsec: int64(pause)}, nil) // the shortest time.Sleep is a millisecond on an idle process
	}
}

// outlive waits for a copy that nobody waits for. The GPU may never end it.
func (s *copyStream) outlive(j *gpu.Job) {
	for ended := false; !ended; ended, _ = s.poll(j) {
		time.Sleep(lastPause)
	}
}

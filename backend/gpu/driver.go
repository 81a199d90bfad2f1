package gpu

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Driver is a loaded driver. A process has one per path. Its methods are safe for concurrent use.
type Driver struct {
	calls
	path string
	refs int // under drivers.mu
	maps maps
	pins pins

	warming sync.WaitGroup // WarmUp
	warm    [64]sync.Once  // by GPU

	proofs        proofs
	vmms          vmms
	registrations answers[Mem] // what was found about ranges that are being registered
}

// Why is the reason of an error. errors.Is finds it.
type Why int

// Fault is an error of the driver, or of a request to it.
type Fault struct {
	Why    Why
	Result int    // the driver's CUresult; 0: no driver call was made
	Call   string // the entry point of the driver, or the name of another failed step
	Text   string // the driver's name of the result
}

// maps holds mappings of peers' memory: one for each allocation and local GPU.
type maps struct {
	opened, failed, imports atomic.Uint64 // for statistics

	mu  sync.Mutex // no other lock is taken under it
	all []*mapping
}

// mapping is one mapping of a peer's memory.
type mapping struct {
	d      *Driver
	share  shared
	proof  *proof // for a handle in which the process number is replaced; nil: none
	device int    // local GPU
	refs   int    // under maps.mu

	mu       sync.Mutex // one thread opens, the others wait
	begun    bool
	identity bool // memory of this process at its own address; nothing to close
	at       uint64
	vmm      bool     // the address range is reserved
	sizes    []uint64 // of mapped pieces, in order
	mapped   uint64   // total bytes of mapped pieces
	why      Why      // reason of the failure; written before state
	state    atomic.Int32
}

// pins holds the ranges of host memory that copies use.
type pins struct {
	mu     sync.Mutex
	ranges map[pinned]*pin
}

type pinned struct {
	addr unsafe.Pointer
	size uint64
}

type pin struct {
	refs    int
	foreign bool          // pinned by other code of the process
	call    chan struct{} // the driver pins or unpins it; closed when that has returned. nil: it does not
}

// proofs has our own words in GPU memory, and the handles that this process has exported.
type proofs struct {
	mu      sync.Mutex
	blocks  map[int]*block      // by GPU
	handles map[uint64][64]byte // by address
}

// block is memory of a GPU for words.
type block struct {
	mem  Mem
	next uint64 // offset of the next word
}

// vmms has the VMM memory that we have allocated: sizes by address.
type vmms struct {
	mu    sync.Mutex
	sizes map[uint64]uint64
}

func (f *Fault) Error() string {
	s := f.Call + ": " + f.Why.Error()
	if f.Text != "" {
		s += " (" + f.Text + ")"
	}
	switch f.Why {
	case NoLibrary:
		s += "; install NVIDIA's driver or give its path in option cuda_path"
	case OldDriver:
		s += "; install driver 470 or later"
	case NoFDs:
		s += "; raise ulimit -n"
	}
	return s
}

// Unwrap lets errors.Is find the reason.
func (f *Fault) Unwrap() error { return f.Why }

// Is reports whether an error has that reason.
func Is(err error, why Why) bool { return errors.Is(err, why) }

// failed converts the result of a driver call to an error.
func (d calls) failed(r result, call string) error {
	why := Failed
	switch {
	case r == ok:
		return nil
	case r.lost():
		why = Lost
	case r == outOfMemory:
		why = NoMemory
	}
	return &Fault{Why: why, Result: int(r), Call: call, Text: d.errorName(r)}
}

func (m *maps) busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all) > 0
}

func (p *pins) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ranges) > 0
}

// exported notes the handle of memory of ours.
func (p *proofs) exported(base uint64, handle [64]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handles == nil {
		p.handles = map[uint64][64]byte{}
	}
	p.handles[base] = handle
}

// ours reports that this process has exported the handle. A peer that shows it would make us map our own memory as the peer's.
func (p *proofs) ours(handle *[64]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.handles {
		if h == *handle {
			return true
		}
	}
	return false
}

// answers keeps answers about ranges of memory while somebody has use for them. Safe for concurrent use.
type answers[T any] struct {
	mu     sync.Mutex
	ranges map[memRange]*answer[T]
}

type memRange struct{ addr, size uint64 }

type answer[T any] struct {
	users int
	has   bool
	is    T
}

// begin keeps the next answer about a range until end is called as often as begin was.
func (a *answers[T]) begin(at memRange) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ranges == nil {
		a.ranges = map[memRange]*answer[T]{}
	}
	if a.ranges[at] == nil {
		a.ranges[at] = &answer[T]{}
	}
	a.ranges[at].users++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.ranges[at].users--; a.ranges[at].users == 0 {
			delete(a.ranges, at)
		}
	}
}

// known returns the answer that is kept about a range, and where one is to be kept; nil: nobody has use for one.
func (a *answers[T]) known(at memRange) (r *answer[T], is T, has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r = a.ranges[at]; r != nil {
		is, has = r.is, r.has
	}
	return r, is, has
}

// learn keeps an answer. r was there before the question.
func (a *answers[T]) learn(r *answer[T], is T) {
	if r == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.is, r.has = is, true
}

package gpu

import (
	"errors"
	"slices"
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

	warming sync.WaitGroup                     // WarmUp
	warm    [maxDevices]sync.Once              // by GPU
	infos   [maxDevices]atomic.Pointer[Device] // by GPU, once its context is retained

	proofs        proofs
	vmms          vmms
	registrations answers // what was found about ranges that are being registered
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
	handles map[uint64]exported // by address
	plain   atomic.Uint64       // id of the allocation whose handle was exported last; 0: none
}

// exported is the IPC handle of an allocation of ours.
type exported struct {
	buffer uint64
	handle [64]byte
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
func (p *proofs) exported(base, buffer uint64, handle [64]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handles == nil {
		p.handles = map[uint64]exported{}
	}
	p.handles[base] = exported{buffer, handle}
	p.plain.Store(buffer)
}

// of is the handle of an allocation, if it was exported.
func (p *proofs) of(base, buffer uint64, out *[64]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	is, has := p.handles[base]
	if !has || buffer == 0 || is.buffer != buffer {
		return false
	}
	*out = is.handle
	return true
}

// ours reports that this process has exported the handle. A peer that shows it would make us map our own memory as the peer's.
func (p *proofs) ours(handle *[64]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.handles {
		if h.handle == *handle {
			return true
		}
	}
	return false
}

// answers keeps answers about ranges of memory while somebody has use for them. Safe for concurrent use.
type answers struct {
	mu     sync.Mutex
	ranges []*answer // few: of registrations in progress
}

type memRange struct{ addr, size uint64 }

type answer struct {
	of    memRange
	users int
	is    *Range // nil: the driver was not asked. Its GPU is nil if no LazyDriver has asked
}

// begin keeps the next answer about a range until end is called as often as begin was.
func (a *answers) begin(at memRange) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.find(at)
	if r == nil {
		r = &answer{of: at}
		a.ranges = append(a.ranges, r)
	}
	r.users++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.users--; r.users == 0 {
			a.ranges = slices.DeleteFunc(a.ranges, func(o *answer) bool { return o == r })
		}
	}
}

// find: under mu.
func (a *answers) find(at memRange) *answer {
	for _, r := range a.ranges {
		if r.of == at {
			return r
		}
	}
	return nil
}

// known returns the answer that is kept about a range, and where one is to be kept; nil: nobody has use for one.
func (a *answers) known(at memRange) (r *answer, is *Range) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r = a.find(at); r != nil {
		is = r.is
	}
	return r, is
}

// learn keeps an answer. r was there before the question.
func (a *answers) learn(r *answer, is *Range) {
	if r == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.is = is
}

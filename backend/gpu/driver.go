package gpu

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Driver is a loaded driver, one in a process for each path. Its methods are safe for concurrent use.
type Driver struct {
	calls
	path string
	refs int // under drivers.mu
	maps maps
	pins pins
}

// Why says what can't be had, and Is lets errors.Is look for it.
type Why int

// Fault is an error of the driver, or of what it was asked.
type Fault struct {
	Why    Why
	Result int    // the driver's (CUresult); 0: it was not asked
	Call   string // its entry point, or what else failed
	Text   string // its name of the result
}

// maps are peers' memory, mapped once for each allocation and GPU of ours.
type maps struct {
	opened, failed, imports atomic.Uint64 // counters, for statistics

	mu  sync.Mutex // above no other
	all []*mapping
}

// mapping is one.
type mapping struct {
	d      *Driver
	share  shared
	device int // ours
	refs   int // under maps.mu

	mu       sync.Mutex // one opens, the others wait
	begun    bool
	identity bool // memory of this process at its own address: nothing to close
	at       uint64
	vmm      bool     // its address range is reserved
	sizes    []uint64 // of pieces mapped, in order
	mapped   uint64   // bytes
	why      Why      // failed: why; before state
	state    atomic.Int32
}

// pins are the ranges of host memory that copies use.
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
	foreign bool // pinned by somebody else
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
		s += "; install a newer one"
	case NoFDs:
		s += "; raise ulimit -n"
	}
	return s
}

// Unwrap lets errors.Is find the reason.
func (f *Fault) Unwrap() error { return f.Why }

// Is tells whether an error is of that reason.
func Is(err error, why Why) bool { return errors.Is(err, why) }

// failed is the error of a call of the driver.
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

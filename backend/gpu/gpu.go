// Package gpu is what GORAIL wants of GPUs: what a pointer is, mapping the memory of a peer on the same host, and copies that are posted and
// polled without Go. CUDA's driver library is loaded when somebody asks for it; nothing of a toolkit is needed.
//
// The C side is described in gr_gpu.h, which is also how C elsewhere calls it: through Driver.Core. Types here are views of it, for
// registration, tests and whatever may take its time. docs/gpu.md has the decisions and the measurements behind them.
package gpu

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "gpu_int.h"
*/
import "C"

import (
	_ "embed"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

//go:embed kernel/gather.ptx
var ptx string

// image is the kernel as C wants it, for good.
var image = sync.OnceValue(func() *C.char { return C.CString(ptx) })

// Driver is a loaded driver, one in a process for each path. Its methods are safe for concurrent use.
type Driver struct {
	path string
	c    *C.gr_gpu
	refs int // under drivers.mu
}

var drivers struct {
	mu     sync.Mutex
	byPath map[string]*Driver
}

// Open loads the driver's library, or counts one more user of it. Implements dlopen, cuGetProcAddress and cuInit: no GPU is touched. The
// error is a Fault: NoLibrary, NotADriver, OldDriver, NoDevice or Driver (cuInit failed).
func Open(path string) (*Driver, error) {
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d := drivers.byPath[path]; d != nil {
		d.refs++
		return d, nil
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var f C.gr_gpu_fault
	c := C.gg_open(cpath, image(), &f)
	if c == nil {
		return nil, fmt.Errorf("%s: %w", path, fault(&f))
	}
	d := &Driver{path: path, c: c, refs: 1}
	if drivers.byPath == nil {
		drivers.byPath = make(map[string]*Driver)
	}
	drivers.byPath[path] = d
	return d, nil
}

// Close gives the driver back; the last user's Close releases contexts and pinned memory. With lanes, mappings, tables or pinned ranges left
// it fails with Busy and changes nothing.
func (d *Driver) Close() error {
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d.refs == 0 {
		return nil
	}
	if d.refs > 1 {
		d.refs--
		return nil
	}
	if rc := C.gg_close(d.c); rc != 0 {
		return &Fault{Why: Why(-rc), Call: "close"}
	}
	d.refs = 0
	delete(drivers.byPath, d.path)
	return nil
}

// Core is the gr_gpu that C calls; good until Close.
func (d *Driver) Core() unsafe.Pointer { return unsafe.Pointer(d.c) }

// Devices is how many GPUs this process sees.
func (d *Driver) Devices() int { return int(d.c.devices) }

// Version is CUDA's that the driver is for: 13000 is 13.0.
func (d *Driver) Version() int { return int(d.c.version) }

// Why says what can't be had, and Is lets errors.Is look for it.
type Why int

// Reasons; gr_gpu.h has their texts.
const (
	NoLibrary  Why = C.GR_GPU_NO_LIBRARY
	NotADriver Why = C.GR_GPU_NOT_A_DRIVER
	OldDriver  Why = C.GR_GPU_OLD_DRIVER
	NoDevice   Why = C.GR_GPU_NO_DEVICE
	Failed     Why = C.GR_GPU_DRIVER
	NoMemory   Why = C.GR_GPU_NO_MEMORY
	Lost       Why = C.GR_GPU_LOST
	Unknown    Why = C.GR_GPU_HOST
	Torn       Why = C.GR_GPU_TORN
	Changed    Why = C.GR_GPU_CHANGED
	NoHandle   Why = C.GR_GPU_NO_HANDLE
	Pool       Why = C.GR_GPU_POOL
	Managed    Why = C.GR_GPU_MANAGED
	Pinned     Why = C.GR_GPU_PINNED
	NoPeer     Why = C.GR_GPU_NO_PEER
	Unseen     Why = C.GR_GPU_UNSEEN
	Refused    Why = C.GR_GPU_REFUSED
	NoFDs      Why = C.GR_GPU_NO_FDS
	BadShare   Why = C.GR_GPU_BAD_SHARE
	NoDMABuf   Why = C.GR_GPU_NO_DMABUF
	Busy       Why = C.GR_GPU_BUSY
	Cancelled  Why = C.GR_GPU_CANCELLED
	Silent     Why = C.GR_GPU_SILENT
	NoFabric   Why = C.GR_GPU_NO_FABRIC
	Fabrics    Why = C.GR_GPU_FABRICS
)

// WhyCount is how many reasons there are, with 0, which is none.
const WhyCount = C.GR_GPU_WHY_COUNT

func (w Why) Error() string { return C.GoString(C.gr_gpu_why_text(C.int(w))) }

// Fault is an error of the driver, or of what it was asked.
type Fault struct {
	Why    Why
	Result int    // the driver's (CUresult); 0: it was not asked
	Call   string // its entry point, or what else failed
	Text   string // its name of the result
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

func fault(f *C.gr_gpu_fault) error {
	return &Fault{Why: Why(f.why), Result: int(f.result), Call: C.GoString(f.call), Text: C.GoString(&f.text[0])}
}

// check is the error of a call that gave rc.
func check(rc C.int, f *C.gr_gpu_fault) error {
	if rc >= 0 {
		return nil
	}
	if f == nil || f.why == 0 {
		return &Fault{Why: Why(-rc)}
	}
	return fault(f)
}

// Is tells whether an error is of that reason.
func Is(err error, why Why) bool { return errors.Is(err, why) }

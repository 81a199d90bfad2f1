// Package cuda is the benchmark's use of GPUs: memory, copies from and to the host, and a load that keeps a GPU's SMs busy. It loads
// the driver at run time, so that the tool builds and runs without one.
//
// A Driver and its memory are safe for concurrent use, except that Free ends the use. Errors name the driver's call and its result.
package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"cmp"
	_ "embed" // the kernel
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// EnvPath names the driver's library, as it does for the plugin.
const EnvPath = "GORAIL_CUDA_PATH"

// Driver is the loaded driver.
type Driver struct {
	c    *C.bc_driver
	gpus int
}

var open = sync.OnceValues(load)

// Open loads libcuda.so.1, or the library that EnvPath names. It does so once for a process.
func Open() (*Driver, error) { return open() }

func load() (*Driver, error) {
	path := cmp.Or(os.Getenv(EnvPath), "libcuda.so.1")
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	const room = 512
	why := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(why))
	d := &Driver{c: C.bc_open(p, why, room)}
	if d.c == nil {
		return nil, fmt.Errorf("no GPU driver: %s: %s", path, C.GoString(why))
	}
	var n C.int
	if err := d.err("cuDeviceGetCount", C.bc_count(d.c, &n)); err != nil {
		return nil, err
	}
	d.gpus = int(n)
	return d, nil
}

// release ends the driver's use. Tests call it; a process that ends need not.
func (d *Driver) release() { C.bc_release(d.c) }

func (d *Driver) err(call string, r C.int) error {
	if r == C.CU_OK {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", call, C.GoString(C.bc_error(d.c, r)), int(r))
}

// GPU is one GPU of this process.
type GPU struct {
	Name string
	d    *Driver
	id   C.int
	sms  C.int
}

// GPU returns a GPU by its number, as CUDA_VISIBLE_DEVICES leaves them.
func (d *Driver) GPU(id int) (*GPU, error) {
	if id < 0 || id >= d.gpus {
		return nil, fmt.Errorf("no GPU %d: this process sees %d (CUDA_VISIBLE_DEVICES chooses)", id, d.gpus)
	}
	g := &GPU{d: d, id: C.int(id)}
	var name [128]C.char
	if err := d.err("cuDeviceGetName", C.bc_describe(d.c, g.id, &name[0], C.size_t(len(name)), &g.sms)); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", id, err)
	}
	g.Name = C.GoString(&name[0])
	return g, nil
}

// Memory is memory of a GPU. Free frees it.
type Memory struct {
	g    *GPU
	at   C.cu_ptr
	size C.size_t
	vmm  C.int
}

// Alloc allocates size bytes by cuMemAlloc, or as VMM memory (cuMemCreate) whose handle can be shared as a descriptor.
func (g *GPU) Alloc(size uint64, vmm bool) (*Memory, error) {
	m := &Memory{g: g, size: C.size_t(size)}
	if vmm {
		m.vmm = 1
	}
	if err := g.d.err("allocation", C.bc_alloc(g.d.c, g.id, &m.size, m.vmm, &m.at)); err != nil {
		return nil, fmt.Errorf("%d bytes of GPU %d: %w", size, g.id, err)
	}
	return m, nil
}

// Addr returns the address of the first byte.
func (m *Memory) Addr() uint64 { return uint64(m.at) }

// Write copies b to the start of the memory.
func (m *Memory) Write(b []byte) error {
	defer runtime.KeepAlive(b)
	return m.g.d.err("cuMemcpyHtoD", C.bc_write(m.g.d.c, m.g.id, m.at, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))))
}

// Read copies the start of the memory to b.
func (m *Memory) Read(b []byte) error {
	defer runtime.KeepAlive(b)
	return m.g.d.err("cuMemcpyDtoH", C.bc_read(m.g.d.c, m.g.id, unsafe.Pointer(unsafe.SliceData(b)), m.at, C.size_t(len(b))))
}

// Free frees the memory. A second call does nothing.
func (m *Memory) Free() error {
	if m.at == 0 {
		return nil
	}
	r := C.bc_free(m.g.d.c, m.g.id, m.size, m.vmm, m.at)
	m.at = 0
	return m.g.d.err("free", r)
}

//go:embed busy.ptx
var ptx string

// Load is a running load.
type Load struct {
	g     *GPU
	c     *C.bc_load
	count int64
	since time.Time
}

// Busy starts a load that keeps all SMs of the GPU busy until Stop: launches of a kernel with the mix of a product of matrices,
// about half a millisecond each, two of them queued.
func (g *GPU) Busy() (*Load, error) {
	p := C.CString(ptx)
	defer C.free(unsafe.Pointer(p))
	l := &Load{g: g}
	if err := g.d.err("the kernel of the load", C.bc_load_start(g.d.c, g.id, g.sms, p, &l.c)); err != nil {
		return nil, fmt.Errorf("GPU %d cannot be kept busy: %w", g.id, err)
	}
	l.since = time.Now()
	return l, nil
}

// Rate returns the launches a second that ended since the last call, or since the start.
func (l *Load) Rate() (float64, error) {
	n, now := int64(C.bc_load_count(l.c)), time.Now()
	if n < 0 {
		return 0, fmt.Errorf("GPU %d: the load ended: %w", l.g.id, l.g.d.err("kernel", C.int(-n)))
	}
	rate := float64(n-l.count) / now.Sub(l.since).Seconds()
	l.count, l.since = n, now
	return rate, nil
}

// Stop ends the load and frees what it used. Call it once.
func (l *Load) Stop() error { return l.g.d.err("the load", C.bc_load_stop(l.c)) }

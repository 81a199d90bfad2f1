package sock

// #include "bounce.h"
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"gorail/backend/gpu"
)

// GPU holds the bounce buffers of one rail for one GPU: pinned memory, and copies between it and the GPU. Frames fill them, and are made of
// them.
type GPU struct {
	c *C.tcp_gpu

	mu   sync.Mutex
	full atomic.Bool // written with mu held
}

// NewGPU makes a GPU without buffers. stream is the stream's number: negative, and unique among the streams of the driver's GPU. The error is
// NoMemory.
func NewGPU(d *gpu.Driver, device, stream int) (*GPU, error) {
	g := &GPU{}
	if rc := C.tcp_gpu_new((*C.gr_gpu)(d.Core()), C.int(device), C.int(stream), &g.c); rc != 0 {
		return nil, &gpu.Fault{Why: gpu.Why(-rc)}
	}
	return g, nil
}

// Fill takes a stream, jobs and 4 MiB of pinned memory, unless it has them. It must have ended before there is an operation. It takes
// milliseconds, and a second call waits for the first. After an error it has taken nothing.
func (g *GPU) Fill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full.Load() || g.c == nil {
		return nil
	}
	var f C.gr_gpu_fault
	rc := C.tcp_gpu_fill(g.c, &f)
	g.full.Store(rc == 0)
	switch {
	case rc == 0:
		return nil
	case f.why == 0:
		return &gpu.Fault{Why: gpu.Why(-rc)}
	}
	return gpuFault(unsafe.Pointer(&f))
}

// Full reports whether Fill has succeeded. It waits for no Fill in progress.
func (g *GPU) Full() bool { return g.full.Load() }

// gpuFault is the error of a gr_gpu_fault.
func gpuFault(at unsafe.Pointer) error {
	f := (*C.gr_gpu_fault)(at)
	return &gpu.Fault{Why: gpu.Why(f.why), Result: int(f.result), Call: C.GoString(f.call), Text: C.GoString(&f.text[0])}
}

// Core returns the tcp_gpu, valid until Free.
func (g *GPU) Core() unsafe.Pointer { return unsafe.Pointer(g.c) }

// Free frees everything, after a Fill in progress. No rail knows the GPU. False: a copy is in progress, and nothing is freed.
func (g *GPU) Free() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.c == nil || C.tcp_gpu_free(g.c) != 0 {
		return g.c == nil
	}
	g.c = nil
	return true
}

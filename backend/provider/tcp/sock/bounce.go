package sock

// #include "bounce.h"
import "C"

import (
	"unsafe"

	"gorail/backend/gpu"
)

// GPU holds the bounce buffers of one rail for one GPU: pinned memory, and copies between it and the GPU. Frames fill them, and are made of
// them.
type GPU struct{ c *C.tcp_gpu }

// NewGPU takes a stream, jobs and 4 MiB of pinned memory. stream is the stream's number: negative, and unique among the streams of
// the driver's GPU. NewGPU takes milliseconds.
func NewGPU(d *gpu.Driver, device, stream int) (*GPU, error) {
	g := &GPU{}
	var f C.gr_gpu_fault
	rc := C.tcp_gpu_new((*C.gr_gpu)(d.Core()), C.int(device), C.int(stream), &g.c, &f)
	if rc == 0 {
		return g, nil
	}
	if f.why == 0 {
		return nil, &gpu.Fault{Why: gpu.Why(-rc)}
	}
	return nil, gpuFault(unsafe.Pointer(&f))
}

// gpuFault is the error of a gr_gpu_fault.
func gpuFault(at unsafe.Pointer) error {
	f := (*C.gr_gpu_fault)(at)
	return &gpu.Fault{Why: gpu.Why(f.why), Result: int(f.result), Call: C.GoString(f.call), Text: C.GoString(&f.text[0])}
}

// Core returns the tcp_gpu, valid until Free.
func (g *GPU) Core() unsafe.Pointer { return unsafe.Pointer(g.c) }

// Free frees everything. No rail knows the GPU. False: a copy is in progress, and nothing is freed.
func (g *GPU) Free() bool { return C.tcp_gpu_free(g.c) == 0 }

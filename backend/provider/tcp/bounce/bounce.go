// Package bounce has the bounce buffers of the TCP rail in C: pinned memory, and copies between it and one GPU. Package sock
// fills them from frames, and makes frames of them.
package bounce

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17 -D_GNU_SOURCE
// #include "bounce.h"
import "C"

import (
	"unsafe"

	"gorail/backend/gpu"
)

// GPU holds the bounce buffers of one rail for one GPU.
type GPU struct{ c *C.tcp_gpu }

// New takes a stream, jobs and 4 MiB of pinned memory. stream is the stream's number: negative, and unique among the streams of
// the driver's GPU. New takes milliseconds.
func New(d *gpu.Driver, device, stream int) (*GPU, error) {
	g := &GPU{}
	var f C.gr_gpu_fault
	rc := C.tcp_gpu_new((*C.gr_gpu)(d.Core()), C.int(device), C.int(stream), &g.c, &f)
	if rc == 0 {
		return g, nil
	}
	if f.why == 0 {
		return nil, &gpu.Fault{Why: gpu.Why(-rc)}
	}
	return nil, Fault(unsafe.Pointer(&f))
}

// Fault is the error of a gr_gpu_fault.
func Fault(at unsafe.Pointer) error {
	f := (*C.gr_gpu_fault)(at)
	return &gpu.Fault{Why: gpu.Why(f.why), Result: int(f.result), Call: C.GoString(f.call), Text: C.GoString(&f.text[0])}
}

// Core returns the tcp_gpu, valid until Free.
func (g *GPU) Core() unsafe.Pointer { return unsafe.Pointer(g.c) }

// Free frees everything. No rail knows the GPU. False: a copy is in progress, and nothing is freed.
func (g *GPU) Free() bool { return C.tcp_gpu_free(g.c) == 0 }

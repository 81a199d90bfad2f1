package ibverbs

/*
#include <stdlib.h>
#include "ibv.h"
*/
import "C"

import (
	"unsafe"

	"gorail/backend/provider/internal/clib"
)

// Limits of the C code.
const (
	SendDepth   = C.VB_SEND_DEPTH // work requests of an endpoint, at most
	RecvDepth   = C.VB_RECV_DEPTH
	MaxSegments = C.GR_MAX_IOV // segments of an operation

	// GPUMark is the offset, in bytes, of a GPU memory descriptor from its region.
	GPUMark = C.VB_GPU
)

// Rail is the C part of a rail, which C posts to and polls, in C memory. It owns a protection domain, a completion
// channel and completion queues. verbs.h says which members Go may access, and when.
type Rail struct {
	lib *Library
	c   *C.vb_rail
}

// NewRail returns a rail without libibverbs objects.
func NewRail(l *Library) (*Rail, error) {
	mem, err := clib.Zeroed("verbs_rail", 1, C.sizeof_vb_rail)
	if err != nil {
		return nil, err
	}
	c := (*C.vb_rail)(mem)
	C.gr_rail_init(&c.base, &C.vb_ops)
	c.lib = &l.t.lib
	return &Rail{l, c}, nil
}

// Core returns the gr_rail.
func (r *Rail) Core() unsafe.Pointer { return unsafe.Pointer(r.c) }

// AllocPD implements ibv_alloc_pd.
func (r *Rail) AllocPD(ctx *Context) (err error) {
	r.c.pd, err = r.lib.allocPD(ctx)
	return err
}

// RegisterSink implements ibv_reg_mr of the sink: the bytes that receive the data of proving READs.
func (r *Rail) RegisterSink() (err error) {
	r.c.sink_mr, err = r.lib.regMR(r.c.pd, unsafe.Pointer(&r.c.sink), len(r.c.sink), AccessLocalWrite)
	return err
}

// CreateChannel implements ibv_create_comp_channel.
func (r *Rail) CreateChannel(ctx *Context) (err error) {
	r.c.channel, err = r.lib.createChannel(ctx)
	return err
}

// CreateCQ implements ibv_create_cq of the first completion queue. SetFacts comes before.
func (r *Rail) CreateCQ() error {
	var call *C.char
	rc := C.vb_cq_first(r.c, &call)
	return failed(C.GoString(call), rc)
}

// FDs returns the file descriptors of the completion channel and of the device's async events.
func (r *Rail) FDs(ctx *Context) (completions, events int) {
	return int(r.c.channel.fd), int(ctx.async_fd)
}

// Facts are the properties of a rail that the core reads.
type Facts struct {
	WaitFD                     int
	Segments, TxDepth, RxDepth uint32
	MaxMsg                     uint32
	MaxCQ                      uint32 // the device's max_cq; 0: unknown
	MaxCQE                     uint32 // the device's max_cqe
}

// SetFacts sets the properties of a rail that is being opened.
func (r *Rail) SetFacts(f Facts) {
	b := &r.c.base
	b.wait_fd = C.int(f.WaitFD)
	b.limit.iov_limit = C.uint32_t(f.Segments)
	b.limit.max_msg = C.uint64_t(f.MaxMsg)
	b.limit.msg_size = C.uint32_t(f.MaxMsg)
	b.limit.tx_depth = C.uint32_t(f.TxDepth)
	b.limit.rx_depth = C.uint32_t(f.RxDepth)
	b.is.private_ep, b.is.ordered, b.is.chained = 1, 1, 1
	r.c.max_cq, r.c.max_cqe = C.uint32_t(f.MaxCQ), C.uint32_t(f.MaxCQE)
}

// MaxMsg returns the largest work request that the core may post, in bytes.
func (r *Rail) MaxMsg() uint64 { return uint64(r.c.base.limit.max_msg) }

// Register implements ibv_reg_mr_iova2, or ibv_reg_mr. Registration pins the memory, unless the access is on demand.
// Pinning may take seconds.
func (r *Rail) Register(addr, length uint64, access uint32) (*MR, error) {
	mr, err := C.vb_reg(r.c, C.uint64_t(addr), C.size_t(length), C.uint(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_mr", err)
	}
	return mr, nil
}

// RegisterDMABuf implements ibv_reg_dmabuf_mr. The library must have it.
func (r *Rail) RegisterDMABuf(fd int, offset, length, iova uint64, access int) (*MR, error) {
	return r.lib.regDMABuf(r.c.pd, fd, offset, length, iova, access)
}

// Close closes all open objects, frees the C rail and returns the first error. The rail must be unused.
func (r *Rail) Close() (first error) {
	l, c := r.lib, r.c
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	note(failed("ibv_destroy_cq", C.vb_cq_close(c)))
	if c.channel != nil {
		note(l.destroyChannel(c.channel))
	}
	if c.sink_mr != nil {
		note(l.DeregMR(c.sink_mr))
	}
	if c.pd != nil {
		note(l.deallocPD(c.pd))
	}
	C.pthread_mutex_destroy(&c.base.mu)
	C.free(unsafe.Pointer(c.slot))
	C.gr_ready_free(&c.ready)
	C.free(unsafe.Pointer(c))
	return first
}

package core

/*
#cgo noescape plan_pairs
#cgo nocallback plan_pairs
#include "gr_pairs.h"

static uint64_t plan_pairs(gr_plan *plan, uintptr_t ops, uintptr_t local, uintptr_t remote, uint64_t n, gr_window *here, gr_window *there)
{
    plan->ops = (gr_op *)ops;
    return gr_plan_pairs(plan, (const gr_list_desc *)local, (const gr_list_desc *)remote, n, here, there);
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Op is one operation: a segment of a work request, 32 bytes. It is C's gr_op. Before a plan is cut it is a piece: one resolved descriptor
// pair, or several that touch. Addresses and lengths are in bytes. Regions are their indices in the core's table.
type Op struct {
	Local, Remote, Len uint64
	LRegion, RRegion   uint32
}

// Desc is one element of a descriptor list, in the layout of nixlMetaDesc. It is C's gr_list_desc. MD is the shim's metadata object.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

// Window is the part of a region that a piece may be in: the region, or one of its slices. It does not run past the end of the
// address space.
type Window struct {
	MD         unsafe.Pointer // the metadata object of the region; nil: unknown, and nothing is in the window
	Addr, Size uint64         // in bytes
	Index      uint32         // of the region: LRegion or RRegion of an operation
}

// Plan is a transfer's operations while they are written. Package transfer writes it; C adds long runs of pairs (Pairs).
type Plan struct {
	Ops     []Op   // the memory; the merged pieces are the first Len. The caller may move the plan to larger memory
	Len     int    // merged pieces so far; the last one may still grow
	Bytes   uint64 // total bytes
	Longest uint64 // of the merged pieces, in bytes
}

// These types have C's layout: this fails to compile if they have not.
const (
	_ = -(unsafe.Sizeof(Op{}) ^ C.sizeof_gr_op)
	_ = -(unsafe.Offsetof(Op{}.Local) ^ unsafe.Offsetof(C.gr_op{}.local))
	_ = -(unsafe.Offsetof(Op{}.Remote) ^ unsafe.Offsetof(C.gr_op{}.remote))
	_ = -(unsafe.Offsetof(Op{}.Len) ^ unsafe.Offsetof(C.gr_op{}.len))
	_ = -(unsafe.Offsetof(Op{}.LRegion) ^ unsafe.Offsetof(C.gr_op{}.lregion))
	_ = -(unsafe.Offsetof(Op{}.RRegion) ^ unsafe.Offsetof(C.gr_op{}.rregion))
	_ = -(unsafe.Sizeof(Desc{}) ^ C.sizeof_gr_list_desc)
	_ = -(unsafe.Offsetof(Desc{}.Addr) ^ unsafe.Offsetof(C.gr_list_desc{}.addr))
	_ = -(unsafe.Offsetof(Desc{}.Len) ^ unsafe.Offsetof(C.gr_list_desc{}.len))
	_ = -(unsafe.Offsetof(Desc{}.MD) ^ unsafe.Offsetof(C.gr_list_desc{}.md))
)

// Pairs adds the pieces of descriptor pairs of two windows to a plan, up to the first pair that is not inside them, or that Ops has no room
// for. It returns the number of pairs. The caller ensures that their bytes are less than 2^63 together with the plan's. Implements
// gr_plan_pairs.
func Pairs(w *Plan, local, remote []Desc, l, r Window) int {
	p := C.gr_plan{room: C.uint64_t(len(w.Ops)), used: C.uint64_t(w.Len), bytes: C.uint64_t(w.Bytes), longest: C.uint64_t(w.Longest)}
	here, there := cWindow(l), cWindow(r)
	// Addresses as numbers: the lists of tests are Go's, and have pointers to memory of Go, which C does not follow.
	n := C.plan_pairs(&p, address(w.Ops), address(local), address(remote), C.uint64_t(len(local)), &here, &there)
	runtime.KeepAlive(w.Ops)
	runtime.KeepAlive(local)
	runtime.KeepAlive(remote)
	w.Len, w.Bytes, w.Longest = int(p.used), uint64(p.bytes), uint64(p.longest)
	return int(n)
}

func address[T any](list []T) C.uintptr_t {
	return C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(list))))
}

func cWindow(w Window) C.gr_window {
	return C.gr_window{md: C.uint64_t(uintptr(w.MD)), addr: C.uint64_t(w.Addr), size: C.uint64_t(w.Size), index: C.uint32_t(w.Index)}
}

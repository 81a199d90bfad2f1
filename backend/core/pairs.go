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

	"gorail/backend/plan"
)

// The lists of package plan have C's layout: this fails to compile if they have not.
const (
	_ = -(unsafe.Sizeof(plan.Desc{}) ^ C.sizeof_gr_list_desc)
	_ = -(unsafe.Offsetof(plan.Desc{}.Addr) ^ unsafe.Offsetof(C.gr_list_desc{}.addr))
	_ = -(unsafe.Offsetof(plan.Desc{}.Len) ^ unsafe.Offsetof(C.gr_list_desc{}.len))
	_ = -(unsafe.Offsetof(plan.Desc{}.MD) ^ unsafe.Offsetof(C.gr_list_desc{}.md))
)

// Pairs is a plan.Many. Implements gr_plan_pairs.
func Pairs(w *plan.Writer, local, remote []plan.Desc, l, r plan.Window) int {
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

func cWindow(w plan.Window) C.gr_window {
	return C.gr_window{md: C.uint64_t(uintptr(w.MD)), addr: C.uint64_t(w.Addr), size: C.uint64_t(w.Size), index: C.uint32_t(w.Index)}
}

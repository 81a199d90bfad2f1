package nixlapi

/*
#include <stdlib.h>
#include "capi.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

func cXferList(mem Mem, d []Desc) (ptr, Status) {
	var l ptr
	s := C.gn_xfer_list(C.int(mem), (*C.gn_desc)(ptr(unsafe.SliceData(d))), C.size_t(len(d)), &l)
	return l, Status(s)
}

// cRegList gives each descriptor that metaInfo.
func cRegList(mem Mem, d []Desc, meta string) (ptr, Status) {
	var l ptr
	s := C.gn_reg_list(C.int(mem), (*C.gn_desc)(ptr(unsafe.SliceData(d))), C.size_t(len(d)), ptr(unsafe.StringData(meta)), C.size_t(len(meta)), &l)
	return l, Status(s)
}

// cOpt builds optional arguments. It returns nil if none is set.
func cOpt(backend ptr, notif *[]byte, noMerge bool) (ptr, Status) {
	if backend == nil && notif == nil && !noMerge {
		return nil, Success
	}
	var o ptr
	s := C.gn_create_opt_args(&o)
	if s == 0 && backend != nil {
		s = C.gn_opt_args_add_backend(o, backend)
	}
	if s == 0 && notif != nil {
		m := *notif
		s = C.gn_opt_args_set_notif_msg(o, ptr(unsafe.SliceData(m)), C.size_t(len(m)))
		if s == 0 {
			s = C.gn_opt_args_set_has_notif(o, true)
		}
	}
	if s == 0 && noMerge {
		s = C.gn_opt_args_set_skip_desc_merge(o, true)
	}
	return o, Status(s)
}

func cCreateXfer(a ptr, op Op, local, remote ptr, peer string, opt ptr) (ptr, Status) {
	n := C.CString(peer)
	defer C.free(ptr(n))
	var q ptr
	s := C.gn_create_xfer_req(a, C.int(op), local, remote, n, &q, opt)
	return q, Status(s)
}

func cPrepDlist(a ptr, peer string, list, opt ptr) (ptr, Status) {
	n := C.CString(peer)
	defer C.free(ptr(n))
	var h ptr
	s := C.gn_prep_xfer_dlist(a, n, list, &h, opt)
	return h, Status(s)
}

func cMakeXfer(a ptr, op Op, local ptr, li []int32, remote ptr, ri []int32, opt ptr) (ptr, Status) {
	var q ptr
	s := C.gn_make_xfer_req(a, C.int(op),
		local, (*C.int)(ptr(unsafe.SliceData(li))), C.size_t(len(li)),
		remote, (*C.int)(ptr(unsafe.SliceData(ri))), C.size_t(len(ri)), &q, opt)
	return q, Status(s)
}

func cPost(a, q, opt ptr) Status   { return Status(C.gn_post_xfer_req(a, q, opt)) }
func cXferStatus(a, q ptr) Status  { return Status(C.gn_get_xfer_status(a, q)) }
func cReleaseXfer(a, q ptr) Status { return Status(C.gn_release_xfer_req(a, q)) }
func cDestroyXfer(q ptr) Status    { return Status(C.gn_destroy_xfer_req(q)) }
func cXferBackend(a, q ptr) (ptr, Status) {
	var b ptr
	s := C.gn_query_xfer_backend(a, q, &b)
	return b, Status(s)
}

func cCost(a, q ptr) (us, margin int64, s Status) {
	var u, e C.int64_t
	var m C.int
	s = Status(C.gn_estimate_xfer_cost(a, q, nil, &u, &e, &m))
	return int64(u), int64(e), s
}

func cLoop(a, q ptr, n int, timeout time.Duration, lat, post []int64) (int, Status) {
	var done C.size_t
	s := C.gn_loop(a, q, C.size_t(n), C.int64_t(timeout), (*C.int64_t)(ptr(unsafe.SliceData(lat))),
		(*C.int64_t)(ptr(unsafe.SliceData(post))), &done)
	return int(done), Status(s)
}

const maxDepth = C.GN_MAX_DEPTH

func cStream(a ptr, q []ptr, n int, timeout, nap time.Duration) (int, Status) {
	list := (*[C.GN_MAX_DEPTH]ptr)(C.malloc(C.sizeof_uintptr_t * C.GN_MAX_DEPTH))
	defer C.free(ptr(list))
	var done C.size_t
	s := C.gn_stream(a, &list[0], C.size_t(copy(list[:], q)), C.size_t(n), C.int64_t(timeout), C.int64_t(nap), &done)
	return int(done), Status(s)
}

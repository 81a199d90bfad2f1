package ibverbs

/*
#include <stdlib.h>
#include "ibv.h"
*/
import "C"

import (
	"syscall"
	"unsafe"

	"gorail/backend/provider/internal/clib"
)

// QP is the C part of an endpoint, which C posts to and polls, with its queue pair. It is in C memory.
type QP struct {
	rail *Rail
	c    *C.vb_qp
}

// NewQP returns an endpoint without a queue pair.
func (r *Rail) NewQP() (*QP, error) {
	mem, err := clib.Zeroed("verbs_qp", 1, C.sizeof_vb_qp)
	if err != nil {
		return nil, err
	}
	sent, err := clib.Zeroed("verbs_qp_sent", SendDepth, C.sizeof_vb_sent)
	if err != nil {
		C.free(mem)
		return nil, err
	}
	recv, err := clib.Zeroed("verbs_qp_recv", RecvDepth, C.sizeof_uintptr_t)
	if err != nil {
		C.free(sent)
		C.free(mem)
		return nil, err
	}
	c := (*C.vb_qp)(mem)
	c.rail, c.sent, c.recv = r.c, (*C.vb_sent)(sent), (**C.gr_ctx)(recv)
	return &QP{r, c}, nil
}

func (q *QP) free() {
	C.free(unsafe.Pointer(q.c.sent))
	C.free(unsafe.Pointer(q.c.recv))
	C.free(unsafe.Pointer(q.c))
}

// Core returns the `ep` of the ops table.
func (q *QP) Core() unsafe.Pointer { return unsafe.Pointer(q.c) }

// Cap is the capacity of a queue pair: work requests, and inline bytes per request.
type Cap struct{ Send, Recv, Inline uint32 }

// Reserve reserves room for the completions of a queue pair of that capacity: in a completion queue of the rail, or in another one, which it
// makes. It calls ibv_resize_cq or ibv_create_cq. Create follows, or Discard.
func (q *QP) Reserve(want Cap) error {
	var call *C.char
	rc := C.vb_cq_reserve(q.c, C.uint32_t(want.Send+want.Recv), &call)
	return failed(C.GoString(call), rc)
}

// Create implements ibv_create_qp. has is the capacity that the device reports for want.
func (q *QP) Create(want Cap) (has Cap, err error) {
	init := C.struct_ibv_qp_init_attr{send_cq: q.c.cq.cq, recv_cq: q.c.cq.cq, qp_type: C.IBV_QPT_RC, cap: C.struct_ibv_qp_cap{max_send_wr: C.uint32_t(want.Send),
		max_recv_wr: C.uint32_t(want.Recv), max_send_sge: 1, max_recv_sge: 1, max_inline_data: C.uint32_t(want.Inline)}}
	qp, err := C.vb_create_qp(q.rail.lib.t, q.rail.c.pd, &init)
	if qp == nil {
		return has, clib.Failed("ibv_create_qp", err)
	}
	q.c.qp = qp
	return Cap{uint32(init.cap.max_send_wr), uint32(init.cap.max_recv_wr), uint32(init.cap.max_inline_data)}, nil
}

// SetCap sets the capacity that C may use. It is at most what Reserve was asked for.
func (q *QP) SetCap(has Cap) {
	q.c.sq_size, q.c.rq_size, q.c.inline_max = C.uint32_t(has.Send), C.uint32_t(has.Recv), C.uint32_t(has.Inline)
}

// Num returns the queue pair number.
func (q *QP) Num() uint32 { return uint32(q.c.qp.qp_num) }

func (q *QP) modify(call string, a *C.struct_ibv_qp_attr, mask C.int) error {
	rc, err := C.vb_modify_qp(q.rail.lib.t, q.c.qp, a, mask|C.IBV_QP_STATE)
	return clib.Returned(call, int(rc), err)
}

// ToInit implements ibv_modify_qp to INIT.
func (q *QP) ToInit(port int, pkeyIndex uint16) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_INIT, pkey_index: C.uint16_t(pkeyIndex), port_num: C.uint8_t(port),
		qp_access_flags: C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ}
	return q.modify("ibv_modify_qp (INIT)", &a, C.IBV_QP_ACCESS_FLAGS|C.IBV_QP_PKEY_INDEX|C.IBV_QP_PORT)
}

// Route is the route from one of our ports to a peer's port.
type Route struct {
	Port     int
	LID      uint16
	SL, TC   uint8
	GIDIndex int // GID index of our port; -1: no GRH, within the subnet
	GID      [16]byte
}

// ToRTR implements ibv_modify_qp to RTR. reads is how many READs of the peer are answered at a time.
func (q *QP) ToRTR(to Route, peerQPN, peerPSN uint32, mtu int, reads uint8) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_RTR, path_mtu: mtuCode(mtu), dest_qp_num: C.uint32_t(peerQPN), rq_psn: C.uint32_t(peerPSN),
		max_dest_rd_atomic: C.uint8_t(reads), min_rnr_timer: 12,
		ah_attr: C.struct_ibv_ah_attr{dlid: C.uint16_t(to.LID), sl: C.uint8_t(to.SL), port_num: C.uint8_t(to.Port)}}
	if to.GIDIndex >= 0 {
		a.ah_attr.is_global = 1
		a.ah_attr.grh = C.struct_ibv_global_route{dgid: to.GID, sgid_index: C.uint8_t(to.GIDIndex), hop_limit: 64, traffic_class: C.uint8_t(to.TC)}
	}
	return q.modify("ibv_modify_qp (RTR)", &a, C.IBV_QP_AV|C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_RQ_PSN|C.IBV_QP_MAX_DEST_RD_ATOMIC|
		C.IBV_QP_MIN_RNR_TIMER)
}

// mtuCode returns the code of the largest MTU that is at most bytes.
func mtuCode(bytes int) C.enum_ibv_mtu {
	code := C.enum_ibv_mtu(C.IBV_MTU_256)
	for code < C.IBV_MTU_4096 && 256<<code <= bytes {
		code++
	}
	return code
}

// Retries holds the retry settings of a queue pair.
type Retries struct{ Timeout, Count, RNR uint8 }

// ToRTS implements ibv_modify_qp to RTS. reads is how many READs of ours may be in flight.
func (q *QP) ToRTS(psn uint32, r Retries, reads uint8) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_RTS, timeout: C.uint8_t(r.Timeout), retry_cnt: C.uint8_t(r.Count), rnr_retry: C.uint8_t(r.RNR),
		sq_psn: C.uint32_t(psn), max_rd_atomic: C.uint8_t(reads)}
	return q.modify("ibv_modify_qp (RTS)", &a, C.IBV_QP_TIMEOUT|C.IBV_QP_RETRY_CNT|C.IBV_QP_RNR_RETRY|C.IBV_QP_SQ_PSN|C.IBV_QP_MAX_QP_RD_ATOMIC)
}

// failed returns the error of our own C functions, which return 0 or a negative errno.
func failed(call string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return &clib.CallError{Call: call, Errno: syscall.Errno(-rc)}
}

// Enter adds the endpoint to the rail's tables, and gives back the room that its capacity does not need.
func (q *QP) Enter() error { return failed("calloc", C.vb_ep_enter(q.c)) }

// Discard frees an endpoint that is not in the rail's tables. Implements ibv_destroy_qp.
func (q *QP) Discard() {
	if q.c.qp != nil {
		C.vb_destroy_qp(q.rail.lib.t, q.c.qp)
	}
	C.vb_cq_leave(q.c)
	q.free()
}

// Connected allows posts.
func (q *QP) Connected() { C.vb_ep_connected(q.c) }

// Quiesce implements ibv_modify_qp to ERR, and ends all posted operations. quiet: the device uses no memory for the queue pair any more,
// and Destroy follows. If that is not known, Quiesce implements ibv_destroy_qp, too, before any operation is reported, and frees the
// endpoint unless that fails.
func (q *QP) Quiesce() (quiet bool, err error) {
	var is C.int
	err = failed("ibv_destroy_qp", C.vb_ep_quiesce(q.c, &is))
	if is == 0 && err == nil {
		q.free()
	}
	return is != 0, err
}

// Destroy implements ibv_destroy_qp of a quiet queue pair. It may wait for seconds, without a lock. The endpoint is freed unless
// ibv_destroy_qp fails.
func (q *QP) Destroy() error {
	if err := failed("ibv_destroy_qp", C.vb_ep_destroy(q.c)); err != nil {
		return err
	}
	q.free()
	return nil
}

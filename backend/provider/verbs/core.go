package verbs

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

// What C posts and polls with, in C memory: verbs.h says which members Go may touch, and when.
type (
	coreRail = C.vb_rail
	coreQP   = C.vb_qp
)

const (
	sendDepth = C.VB_SEND_DEPTH // requests of an endpoint, at most
	recvDepth = C.VB_RECV_DEPTH

	gpuMark = C.VB_GPU // bytes that the descriptor of a GPU's memory lies beyond its region
)

// newCoreRail is a rail without a device.
func newCoreRail(l *library) (*coreRail, error) {
	c := (*coreRail)(C.calloc(1, C.sizeof_vb_rail))
	if c == nil {
		return nil, clib.Failed("calloc", syscall.ENOMEM)
	}
	C.gr_rail_init(&c.base, &C.vb_ops)
	c.base.batch = &C.vb_batch
	c.lib = &l.t.lib
	return c, nil
}

// freeCoreRail is for one that nobody uses, whose objects are closed.
func freeCoreRail(c *coreRail) {
	C.pthread_mutex_destroy(&c.base.mu)
	C.free(unsafe.Pointer(c.slot))
	C.gr_ready_free(&c.ready)
	C.free(unsafe.Pointer(c))
}

// limits is what the core may ask of a rail.
type limits struct {
	waitFD, maxCQE, maxQPWR int
	maxMsg                  uint32
	iwarp                   bool
}

// set is for a rail that is being opened.
func (l limits) set(c *coreRail) {
	b := &c.base
	b.wait_fd = C.int(l.waitFD)
	// One request is kept, see room() in post.c, and one is the READ that proves the others.
	b.iov_limit = C.uint32_t(atMost(l.maxQPWR-2, C.GR_MAX_IOV))
	b.max_msg = C.uint64_t(l.maxMsg)
	b.msg_size = C.uint32_t(l.maxMsg)
	b.tx_depth = C.uint32_t(atMost(l.maxQPWR, sendDepth) / 2)
	b.rx_depth = C.uint32_t(atMost(l.maxQPWR, recvDepth))
	b.private_ep, b.ordered, b.chained = 1, 1, 1
	c.max_cqe = C.uint32_t(l.maxCQE)
	if l.iwarp {
		c.iwarp = 1
		b.ops = &C.vb_iw_ops
		b.rx_depth-- // the first is the connection's own
	}
}

// atMost is want, or less where the device has less and says so.
func atMost(device int, want uint32) uint32 {
	if device > 0 && uint64(device) < uint64(want) {
		return uint32(device)
	}
	return want
}

// register implements ibv_reg_mr_iova2, or ibv_reg_mr. It pins the memory unless it is registered on demand, which may take seconds.
func register(c *coreRail, addr, length uint64, access uint32) (*ibvMR, error) {
	mr, err := C.vb_reg(c, C.uint64_t(addr), C.size_t(length), C.uint(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_mr", err)
	}
	return mr, nil
}

// newCoreQP is an endpoint without a queue pair.
func newCoreQP(r *coreRail) (*coreQP, error) {
	c := (*coreQP)(C.calloc(1, C.sizeof_vb_qp))
	if c == nil {
		return nil, clib.Failed("calloc", syscall.ENOMEM)
	}
	c.rail = r
	c.sent = (*C.vb_sent)(C.calloc(sendDepth, C.sizeof_vb_sent))
	c.recv = (**C.gr_ctx)(C.calloc(recvDepth, C.sizeof_uintptr_t))
	if c.sent == nil || c.recv == nil {
		freeCoreQP(c)
		return nil, clib.Failed("calloc", syscall.ENOMEM)
	}
	return c, nil
}

// freeCoreQP is for one that has no place on its rail.
func freeCoreQP(c *coreQP) {
	C.free(unsafe.Pointer(c.sent))
	C.free(unsafe.Pointer(c.recv))
	C.free(unsafe.Pointer(c))
}

// qpCap is what a queue pair has room for: requests, and bytes in a request.
type qpCap struct{ send, recv, inline uint32 }

// createQP implements ibv_create_qp; has is what the device made of want.
func (l *library) createQP(pd *ibvPD, cq *ibvCQ, want qpCap) (qp *ibvQP, has qpCap, err error) {
	init := C.struct_ibv_qp_init_attr{send_cq: cq, recv_cq: cq, qp_type: C.IBV_QPT_RC, cap: C.struct_ibv_qp_cap{max_send_wr: C.uint32_t(want.send),
		max_recv_wr: C.uint32_t(want.recv), max_send_sge: 1, max_recv_sge: 1, max_inline_data: C.uint32_t(want.inline)}}
	qp, err = C.vb_create_qp(l.t, pd, &init)
	if qp == nil {
		return nil, has, clib.Failed("ibv_create_qp", err)
	}
	return qp, qpCap{uint32(init.cap.max_send_wr), uint32(init.cap.max_recv_wr), uint32(init.cap.max_inline_data)}, nil
}

// set gives an endpoint its queue pair, with room for what has says.
func (has qpCap) set(c *coreQP, qp *ibvQP) {
	c.qp = qp
	c.sq_size, c.rq_size, c.inline_max = C.uint32_t(has.send), C.uint32_t(has.recv), C.uint32_t(has.inline)
}

func (l *library) modify(call string, qp *ibvQP, a *C.struct_ibv_qp_attr, mask C.int) error {
	rc, err := C.vb_modify_qp(l.t, qp, a, mask|C.IBV_QP_STATE)
	return clib.Returned(call, int(rc), err)
}

// toInit implements ibv_modify_qp to INIT. An iWARP queue pair has neither port nor partition.
func (l *library) toInit(qp *ibvQP, port int, pkeyIndex uint16, iwarp bool) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_INIT, pkey_index: C.uint16_t(pkeyIndex), port_num: C.uint8_t(port),
		qp_access_flags: C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ}
	mask := C.int(C.IBV_QP_ACCESS_FLAGS)
	if !iwarp {
		mask |= C.IBV_QP_PKEY_INDEX | C.IBV_QP_PORT
	}
	return l.modify("ibv_modify_qp (INIT)", qp, &a, mask)
}

// route is the way to a peer's port, from one of ours.
type route struct {
	port     int
	lid      uint16
	sl, tc   uint8
	gidIndex int // of our port; -1: within the subnet
	gid      [16]byte
}

// toRTR implements ibv_modify_qp to RTR. reads of the peer's are answered at a time.
func (l *library) toRTR(qp *ibvQP, to route, peerQPN, peerPSN uint32, mtu int, reads uint8) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_RTR, path_mtu: mtuCode(mtu), dest_qp_num: C.uint32_t(peerQPN), rq_psn: C.uint32_t(peerPSN),
		max_dest_rd_atomic: C.uint8_t(reads), min_rnr_timer: 12,
		ah_attr: C.struct_ibv_ah_attr{dlid: C.uint16_t(to.lid), sl: C.uint8_t(to.sl), port_num: C.uint8_t(to.port)}}
	if to.gidIndex >= 0 {
		a.ah_attr.is_global = 1
		a.ah_attr.grh = C.struct_ibv_global_route{dgid: to.gid, sgid_index: C.uint8_t(to.gidIndex), hop_limit: 64, traffic_class: C.uint8_t(to.tc)}
	}
	return l.modify("ibv_modify_qp (RTR)", qp, &a, C.IBV_QP_AV|C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_RQ_PSN|C.IBV_QP_MAX_DEST_RD_ATOMIC|
		C.IBV_QP_MIN_RNR_TIMER)
}

// mtuCode is the largest packet of at most so many bytes.
func mtuCode(bytes int) C.enum_ibv_mtu {
	code := C.enum_ibv_mtu(C.IBV_MTU_256)
	for code < C.IBV_MTU_4096 && 256<<code <= bytes {
		code++
	}
	return code
}

// retries is how long a queue pair tries.
type retries struct{ timeout, count, rnr uint8 }

// toRTS implements ibv_modify_qp to RTS. reads of ours are under way at a time.
func (l *library) toRTS(qp *ibvQP, psn uint32, r retries, reads uint8) error {
	a := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_RTS, timeout: C.uint8_t(r.timeout), retry_cnt: C.uint8_t(r.count), rnr_retry: C.uint8_t(r.rnr),
		sq_psn: C.uint32_t(psn), max_rd_atomic: C.uint8_t(reads)}
	return l.modify("ibv_modify_qp (RTS)", qp, &a, C.IBV_QP_TIMEOUT|C.IBV_QP_RETRY_CNT|C.IBV_QP_RNR_RETRY|C.IBV_QP_SQ_PSN|C.IBV_QP_MAX_QP_RD_ATOMIC)
}

func (l *library) destroyQP(qp *ibvQP) { C.vb_destroy_qp(l.t, qp) }

// failed is the error of our own C, which returns 0 or a negative errno.
func failed(call string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return &clib.CallError{Call: call, Errno: syscall.Errno(-rc)}
}

// enter gives an endpoint its place on the rail, for which ibv_resize_cq may be needed.
func enter(c *coreQP) error {
	var call *C.char
	rc := C.vb_ep_enter(c, &call)
	return failed(C.GoString(call), rc)
}

// connected lets requests in.
func connected(c *coreQP) { C.vb_ep_connected(c) }

// leave ends all that is posted, for a queue pair that something else still uses.
func leave(c *coreQP) { C.vb_ep_leave(c) }

// closeQP ends all that is posted and implements ibv_destroy_qp. The endpoint is freed, unless that fails.
func closeQP(c *coreQP) error {
	if err := failed("ibv_destroy_qp", C.vb_ep_close(c)); err != nil {
		return err
	}
	freeCoreQP(c)
	return nil
}

// iwBegin lets requests wait for the connection; of a side that is asked for it, for the peer's first message.
func iwBegin(c *coreQP, asked bool) error {
	wait := C.int(0)
	if asked {
		wait = 1
	}
	return failed("ibv_post_recv", C.vb_iw_begin(c, wait))
}

// iwSendFirst sends the first message on a connection that we have asked for.
func iwSendFirst(c *coreQP) error { return failed("ibv_post_send", C.vb_iw_up(c)) }

// iwConnected says that requests are let in.
func iwConnected(c *coreQP) bool { return C.vb_iw_connected(c) != 0 }

// iwFail ends what is posted and what will be.
func iwFail(c *coreQP, errno syscall.Errno) { C.vb_iw_fail(c, C.int(errno)) }

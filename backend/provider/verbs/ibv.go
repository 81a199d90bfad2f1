package verbs

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include <stdlib.h>
#include "ibv.h"
*/
import "C"

import (
	"syscall"
	"unsafe"

	"gorail/backend/provider/internal/clib"
)

// Objects of libibverbs.
type (
	ibvDevice  = C.struct_ibv_device
	ibvContext = C.struct_ibv_context
	ibvPD      = C.struct_ibv_pd
	ibvChannel = C.struct_ibv_comp_channel
	ibvCQ      = C.struct_ibv_cq
	ibvQP      = C.struct_ibv_qp
	ibvMR      = C.struct_ibv_mr
)

// What its header numbers.
const (
	transportIB    = C.IBV_TRANSPORT_IB
	transportIWarp = C.IBV_TRANSPORT_IWARP

	portActive = C.IBV_PORT_ACTIVE

	accessLocalWrite  = C.IBV_ACCESS_LOCAL_WRITE
	accessRemoteWrite = C.IBV_ACCESS_REMOTE_WRITE
	accessRemoteRead  = C.IBV_ACCESS_REMOTE_READ
	accessOnDemand    = C.IBV_ACCESS_ON_DEMAND
	accessRelaxed     = C.IBV_ACCESS_RELAXED_ORDERING

	odpSupport     = C.IBV_ODP_SUPPORT
	odpConnections = C.IBV_ODP_SUPPORT_SEND | C.IBV_ODP_SUPPORT_WRITE | C.IBV_ODP_SUPPORT_READ

	eventCQErr       = C.IBV_EVENT_CQ_ERR
	eventDeviceFatal = C.IBV_EVENT_DEVICE_FATAL
	eventPortActive  = C.IBV_EVENT_PORT_ACTIVE
	eventPortErr     = C.IBV_EVENT_PORT_ERR
	eventGIDChange   = C.IBV_EVENT_GID_CHANGE
)

// library is a loaded libibverbs, one method for each of its functions. Safe for concurrent use.
type library struct{ t *C.vb_calls }

// newLibrary has an empty table, in C memory since rails of C use it, and where its members go.
func newLibrary() (*library, []clib.Symbol) {
	t := (*C.vb_calls)(C.calloc(1, C.sizeof_vb_calls))
	const v10, v11 = "IBVERBS_1.0", "IBVERBS_1.1"
	// The versions are those of the structures in the header; they have not changed since rdma-core began.
	return &library{t}, []clib.Symbol{
		{To: &t.get_device_list, Name: "ibv_get_device_list", Version: v11},
		{To: &t.free_device_list, Name: "ibv_free_device_list", Version: v11},
		{To: &t.open_device, Name: "ibv_open_device", Version: v11},
		{To: &t.close_device, Name: "ibv_close_device", Version: v11},
		{To: &t.query_device, Name: "ibv_query_device", Version: v11},
		{To: &t.query_port, Name: "ibv_query_port", Version: v11},
		{To: &t.alloc_pd, Name: "ibv_alloc_pd", Version: v11},
		{To: &t.dealloc_pd, Name: "ibv_dealloc_pd", Version: v11},
		{To: &t.lib.reg_mr, Name: "ibv_reg_mr", Version: v11},
		{To: &t.lib.reg_mr_iova2, Name: "ibv_reg_mr_iova2", Version: "IBVERBS_1.8", Optional: true},
		{To: &t.reg_dmabuf_mr, Name: "ibv_reg_dmabuf_mr", Version: "IBVERBS_1.12", Optional: true},
		{To: &t.lib.dereg_mr, Name: "ibv_dereg_mr", Version: v11},
		{To: &t.create_comp_channel, Name: "ibv_create_comp_channel", Version: v10},
		{To: &t.destroy_comp_channel, Name: "ibv_destroy_comp_channel", Version: v10},
		{To: &t.create_cq, Name: "ibv_create_cq", Version: v11},
		{To: &t.lib.resize_cq, Name: "ibv_resize_cq", Version: v11},
		{To: &t.destroy_cq, Name: "ibv_destroy_cq", Version: v11},
		{To: &t.lib.get_cq_event, Name: "ibv_get_cq_event", Version: v11},
		{To: &t.lib.ack_cq_events, Name: "ibv_ack_cq_events", Version: v11},
		{To: &t.create_qp, Name: "ibv_create_qp", Version: v11},
		{To: &t.lib.modify_qp, Name: "ibv_modify_qp", Version: v11},
		{To: &t.lib.destroy_qp, Name: "ibv_destroy_qp", Version: v11},
		{To: &t.get_async_event, Name: "ibv_get_async_event", Version: v11},
		{To: &t.ack_async_event, Name: "ibv_ack_async_event", Version: v11},
		{To: &t.event_type_str, Name: "ibv_event_type_str", Version: v11},
		{To: &t.fork_init, Name: "ibv_fork_init", Version: v11, Optional: true},
	}
}

// free is for a table that could not be filled.
func (l *library) free() { C.free(unsafe.Pointer(l.t)) }

func (l *library) forkInit() { C.vb_fork_init(l.t) }

// deviceList implements ibv_get_device_list; free is ibv_free_device_list.
func (l *library) deviceList() (list []*ibvDevice, free func(), err error) {
	var n C.int
	c, errno := C.vb_get_device_list(l.t, &n)
	if c == nil {
		if errno == nil {
			errno = syscall.ENOSYS
		}
		return nil, nil, clib.Failed("ibv_get_device_list", errno)
	}
	return unsafe.Slice(c, int(n)), func() { C.vb_free_device_list(l.t, c) }, nil
}

// deviceName is the name of a device in a list, and what connects it.
func deviceName(d *ibvDevice) (name string, transport int) {
	return C.GoString(&d.name[0]), int(d.transport_type)
}

func (l *library) openDevice(d *ibvDevice) (*ibvContext, error) {
	ctx, err := C.vb_open_device(l.t, d)
	if ctx == nil {
		return nil, clib.Failed("ibv_open_device", err)
	}
	return ctx, nil
}

func (l *library) closeDevice(ctx *ibvContext) error {
	rc, err := C.vb_close_device(l.t, ctx)
	return clib.Returned("ibv_close_device", int(rc), err)
}

// deviceAttr is what a device has; what is not positive is unknown.
type deviceAttr struct {
	ports, maxCQE, maxQPWR, maxMR int
	maxReads, maxReadsOut         int // of a peer's at a time on a connection, and of ours
	maxMRSize                     uint64
}

func (l *library) queryDevice(ctx *ibvContext) (deviceAttr, error) {
	var a C.struct_ibv_device_attr
	rc, err := C.vb_query_device(l.t, ctx, &a)
	return deviceAttr{ports: int(a.phys_port_cnt), maxCQE: int(a.max_cqe), maxQPWR: int(a.max_qp_wr), maxMR: int(a.max_mr),
			maxReads: int(a.max_qp_rd_atom), maxReadsOut: int(a.max_qp_init_rd_atom), maxMRSize: uint64(a.max_mr_size)},
		clib.Returned("ibv_query_device", int(rc), err)
}

// queryODP is what the device can register on demand: general and of reliable connections; false: nobody knows.
func queryODP(ctx *ibvContext) (general uint64, connections uint32, ok bool) {
	var a C.struct_ibv_device_attr_ex
	ok = C.vb_query_device_ex(ctx, &a) == 0
	return uint64(a.odp_caps.general_caps), uint32(a.odp_caps.per_transport_caps.rc_odp_caps), ok
}

// portAttr is how a port is.
type portAttr struct {
	state, gids, mtu   int // mtu: bytes
	width, speed       uint8
	lid                uint16
	maxMsg             uint32
	ethernet, needsGRH bool
}

func (l *library) queryPort(ctx *ibvContext, port int) (portAttr, error) {
	var a C.struct_ibv_port_attr
	rc, err := C.vb_query_port(l.t, ctx, C.uint8_t(port), &a)
	return portAttr{state: int(a.state), gids: int(a.gid_tbl_len), mtu: 128 << a.active_mtu, width: uint8(a.active_width), speed: uint8(a.active_speed),
		lid: uint16(a.lid), maxMsg: uint32(a.max_msg_sz), ethernet: a.link_layer == C.IBV_LINK_LAYER_ETHERNET,
		needsGRH: a.flags&C.IBV_QPF_GRH_REQUIRED != 0}, clib.Returned("ibv_query_port", int(rc), err)
}

func (l *library) allocPD(ctx *ibvContext) (*ibvPD, error) {
	pd, err := C.vb_alloc_pd(l.t, ctx)
	if pd == nil {
		return nil, clib.Failed("ibv_alloc_pd", err)
	}
	return pd, nil
}

func (l *library) deallocPD(pd *ibvPD) error {
	rc, err := C.vb_dealloc_pd(l.t, pd)
	return clib.Returned("ibv_dealloc_pd", int(rc), err)
}

// regMR registers C memory; register (core.go) that of others.
func (l *library) regMR(pd *ibvPD, addr unsafe.Pointer, size, access int) (*ibvMR, error) {
	mr, err := C.vb_reg_mr(l.t, pd, addr, C.size_t(size), C.int(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_mr", err)
	}
	return mr, nil
}

func (l *library) hasDMABuf() bool { return l.t.reg_dmabuf_mr != nil }

func (l *library) regDMABuf(pd *ibvPD, fd int, offset, length, iova uint64, access int) (*ibvMR, error) {
	mr, err := C.vb_reg_dmabuf_mr(l.t, pd, C.uint64_t(offset), C.size_t(length), C.uint64_t(iova), C.int(fd), C.int(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_dmabuf_mr", err)
	}
	return mr, nil
}

func (l *library) deregMR(mr *ibvMR) error {
	rc, err := C.vb_dereg_mr(l.t, mr)
	return clib.Returned("ibv_dereg_mr", int(rc), err)
}

func (l *library) createChannel(ctx *ibvContext) (*ibvChannel, error) {
	ch, err := C.vb_create_comp_channel(l.t, ctx)
	if ch == nil {
		return nil, clib.Failed("ibv_create_comp_channel", err)
	}
	return ch, nil
}

func (l *library) destroyChannel(ch *ibvChannel) error {
	rc, err := C.vb_destroy_comp_channel(l.t, ch)
	return clib.Returned("ibv_destroy_comp_channel", int(rc), err)
}

func (l *library) createCQ(ctx *ibvContext, ch *ibvChannel, size int) (*ibvCQ, error) {
	cq, err := C.vb_create_cq(l.t, ctx, C.int(size), ch)
	if cq == nil {
		return nil, clib.Failed("ibv_create_cq", err)
	}
	return cq, nil
}

func (l *library) destroyCQ(cq *ibvCQ) error {
	rc, err := C.vb_destroy_cq(l.t, cq)
	return clib.Returned("ibv_destroy_cq", int(rc), err)
}

// asyncEvent is what has happened to a device, or to the port that it names.
type asyncEvent struct {
	kind, port int
	text       string
}

// nextEvent implements ibv_get_async_event and ibv_ack_async_event; false: there is none.
func (l *library) nextEvent(ctx *ibvContext) (asyncEvent, bool) {
	var ev C.struct_ibv_async_event
	if C.vb_get_async_event(l.t, ctx, &ev) != 0 {
		return asyncEvent{}, false
	}
	defer C.vb_ack_async_event(l.t, &ev)
	return asyncEvent{kind: int(ev.event_type), port: int(*(*C.int)(unsafe.Pointer(&ev.element))),
		text: C.GoString(C.vb_event_type_str(l.t, ev.event_type))}, true
}

// fds are the descriptors of completions and of events.
func fds(ch *ibvChannel, ctx *ibvContext) (completions, events int) {
	return int(ch.fd), int(ctx.async_fd)
}

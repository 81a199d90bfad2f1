package ibverbs

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

// Object types of libibverbs.
type (
	Device  = C.struct_ibv_device
	Context = C.struct_ibv_context
	MR      = C.struct_ibv_mr

	ibvPD      = C.struct_ibv_pd
	ibvChannel = C.struct_ibv_comp_channel
)

// Constants of infiniband/verbs.h.
const (
	TransportIB    = C.IBV_TRANSPORT_IB
	TransportIWarp = C.IBV_TRANSPORT_IWARP

	PortActive = C.IBV_PORT_ACTIVE

	AccessLocalWrite  = C.IBV_ACCESS_LOCAL_WRITE
	AccessRemoteWrite = C.IBV_ACCESS_REMOTE_WRITE
	AccessRemoteRead  = C.IBV_ACCESS_REMOTE_READ
	AccessRelaxed     = C.IBV_ACCESS_RELAXED_ORDERING

	EventCQErr       = C.IBV_EVENT_CQ_ERR
	EventDeviceFatal = C.IBV_EVENT_DEVICE_FATAL
	EventPortActive  = C.IBV_EVENT_PORT_ACTIVE
	EventPortErr     = C.IBV_EVENT_PORT_ERR
	EventGIDChange   = C.IBV_EVENT_GID_CHANGE
)

// Library is a loaded libibverbs, with one method for each function. Its methods are safe for concurrent use.
type Library struct{ t *C.vb_calls }

// newLibrary returns a library with an empty function table, and the list of symbols that fill the table. The table is
// in C memory, because C rails use it.
func newLibrary() (*Library, []clib.Symbol, error) {
	mem, err := clib.Zeroed("verbs_calls", 1, C.sizeof_vb_calls)
	if err != nil {
		return nil, nil, err
	}
	t := (*C.vb_calls)(mem)
	const v10, v11 = "IBVERBS_1.0", "IBVERBS_1.1"
	// The versions are the versions of the structures in the header. They have not changed since rdma-core began.
	return &Library{t}, []clib.Symbol{
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
		{To: &t.lib.create_cq, Name: "ibv_create_cq", Version: v11},
		{To: &t.lib.resize_cq, Name: "ibv_resize_cq", Version: v11},
		{To: &t.lib.destroy_cq, Name: "ibv_destroy_cq", Version: v11},
		{To: &t.lib.get_cq_event, Name: "ibv_get_cq_event", Version: v11},
		{To: &t.lib.ack_cq_events, Name: "ibv_ack_cq_events", Version: v11},
		{To: &t.create_qp, Name: "ibv_create_qp", Version: v11},
		{To: &t.lib.modify_qp, Name: "ibv_modify_qp", Version: v11},
		{To: &t.lib.destroy_qp, Name: "ibv_destroy_qp", Version: v11},
		{To: &t.get_async_event, Name: "ibv_get_async_event", Version: v11},
		{To: &t.ack_async_event, Name: "ibv_ack_async_event", Version: v11},
		{To: &t.event_type_str, Name: "ibv_event_type_str", Version: v11},
		{To: &t.fork_init, Name: "ibv_fork_init", Version: v11, Optional: true},
	}, nil
}

// free frees the table. For a library that could not be loaded.
func (l *Library) free() { C.free(unsafe.Pointer(l.t)) }

func (l *Library) forkInit() { C.vb_fork_init(l.t) }

// DeviceList implements ibv_get_device_list; free implements ibv_free_device_list.
func (l *Library) DeviceList() (list []*Device, free func(), err error) {
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

// DeviceName returns name and transport of a device in a list.
func DeviceName(d *Device) (name string, transport int) {
	return C.GoString(&d.name[0]), int(d.transport_type)
}

// OpenDevice implements ibv_open_device.
func (l *Library) OpenDevice(d *Device) (*Context, error) {
	ctx, err := C.vb_open_device(l.t, d)
	if ctx == nil {
		return nil, clib.Failed("ibv_open_device", err)
	}
	return ctx, nil
}

// CloseDevice implements ibv_close_device.
func (l *Library) CloseDevice(ctx *Context) error {
	rc, err := C.vb_close_device(l.t, ctx)
	return clib.Returned("ibv_close_device", int(rc), err)
}

// DeviceAttr holds a device's limits. A value that is not positive is unknown.
type DeviceAttr struct {
	Ports, MaxQPWR, MaxMR int
	MaxCQ, MaxCQE         int // completion queues, and entries of one
	MaxReads, MaxReadsOut int // per connection: READs of the peer answered at a time, and READs of ours in flight
	MaxMRSize             uint64
}

// QueryDevice implements ibv_query_device.
func (l *Library) QueryDevice(ctx *Context) (DeviceAttr, error) {
	var a C.struct_ibv_device_attr
	rc, err := C.vb_query_device(l.t, ctx, &a)
	return DeviceAttr{Ports: int(a.phys_port_cnt), MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe), MaxQPWR: int(a.max_qp_wr), MaxMR: int(a.max_mr),
			MaxReads: int(a.max_qp_rd_atom), MaxReadsOut: int(a.max_qp_init_rd_atom), MaxMRSize: uint64(a.max_mr_size)},
		clib.Returned("ibv_query_device", int(rc), err)
}

// PortAttr holds the attributes of a port.
type PortAttr struct {
	State, GIDs, MTU   int   // MTU in bytes
	Width, Speed       uint8 // codes of the header
	LID                uint16
	MaxMsg             uint32
	Ethernet, NeedsGRH bool
}

// QueryPort implements ibv_query_port.
func (l *Library) QueryPort(ctx *Context, port int) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	rc, err := C.vb_query_port(l.t, ctx, C.uint8_t(port), &a)
	return PortAttr{State: int(a.state), GIDs: int(a.gid_tbl_len), MTU: 128 << a.active_mtu, Width: uint8(a.active_width), Speed: uint8(a.active_speed),
		LID: uint16(a.lid), MaxMsg: uint32(a.max_msg_sz), Ethernet: a.link_layer == C.IBV_LINK_LAYER_ETHERNET,
		NeedsGRH: a.flags&C.IBV_QPF_GRH_REQUIRED != 0}, clib.Returned("ibv_query_port", int(rc), err)
}

func (l *Library) allocPD(ctx *Context) (*ibvPD, error) {
	pd, err := C.vb_alloc_pd(l.t, ctx)
	if pd == nil {
		return nil, clib.Failed("ibv_alloc_pd", err)
	}
	return pd, nil
}

func (l *Library) deallocPD(pd *ibvPD) error {
	rc, err := C.vb_dealloc_pd(l.t, pd)
	return clib.Returned("ibv_dealloc_pd", int(rc), err)
}

// regMR registers C memory. For other memory see Rail.Register.
func (l *Library) regMR(pd *ibvPD, addr unsafe.Pointer, size, access int) (*MR, error) {
	mr, err := C.vb_reg_mr(l.t, pd, addr, C.size_t(size), C.int(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_mr", err)
	}
	return mr, nil
}

// HasDMABuf reports whether the library has ibv_reg_dmabuf_mr.
func (l *Library) HasDMABuf() bool { return l.t.reg_dmabuf_mr != nil }

func (l *Library) regDMABuf(pd *ibvPD, fd int, offset, length, iova uint64, access int) (*MR, error) {
	mr, err := C.vb_reg_dmabuf_mr(l.t, pd, C.uint64_t(offset), C.size_t(length), C.uint64_t(iova), C.int(fd), C.int(access))
	if mr == nil {
		return nil, clib.Failed("ibv_reg_dmabuf_mr", err)
	}
	return mr, nil
}

// DeregMR implements ibv_dereg_mr.
func (l *Library) DeregMR(mr *MR) error {
	rc, err := C.vb_dereg_mr(l.t, mr)
	return clib.Returned("ibv_dereg_mr", int(rc), err)
}

func (l *Library) createChannel(ctx *Context) (*ibvChannel, error) {
	ch, err := C.vb_create_comp_channel(l.t, ctx)
	if ch == nil {
		return nil, clib.Failed("ibv_create_comp_channel", err)
	}
	return ch, nil
}

func (l *Library) destroyChannel(ch *ibvChannel) error {
	rc, err := C.vb_destroy_comp_channel(l.t, ch)
	return clib.Returned("ibv_destroy_comp_channel", int(rc), err)
}

// AsyncEvent is an event of a device, or of the port that Port names.
type AsyncEvent struct {
	Kind, Port int
	Text       string
}

// NextEvent implements ibv_get_async_event and ibv_ack_async_event; false: none is pending.
func (l *Library) NextEvent(ctx *Context) (AsyncEvent, bool) {
	var ev C.struct_ibv_async_event
	if C.vb_get_async_event(l.t, ctx, &ev) != 0 {
		return AsyncEvent{}, false
	}
	defer C.vb_ack_async_event(l.t, &ev)
	return AsyncEvent{Kind: int(ev.event_type), Port: int(*(*C.int)(unsafe.Pointer(&ev.element))),
		Text: C.GoString(C.vb_event_type_str(l.t, ev.event_type))}, true
}

// RKey returns the key that peers use for the region.
func RKey(mr *MR) uint32 { return uint32(mr.rkey) }

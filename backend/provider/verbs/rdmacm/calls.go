package rdmacm

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include <stdlib.h>
#include "rdmacm.h"
*/
import "C"

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/internal/clib"
)

// calls has one method for each function of librdmacm.
type calls struct{ t *C.cm_calls }

// channel is an rdma_event_channel.
type channel = C.struct_rdma_event_channel

// ID is an rdma_cm_id; nil: none.
type ID *C.struct_rdma_cm_id

const (
	eventConnectRequest = C.RDMA_CM_EVENT_CONNECT_REQUEST
	eventAddrResolved   = C.RDMA_CM_EVENT_ADDR_RESOLVED
	eventRouteResolved  = C.RDMA_CM_EVENT_ROUTE_RESOLVED
	eventEstablished    = C.RDMA_CM_EVENT_ESTABLISHED
	eventAddrError      = C.RDMA_CM_EVENT_ADDR_ERROR
	eventRouteError     = C.RDMA_CM_EVENT_ROUTE_ERROR
	eventConnectError   = C.RDMA_CM_EVENT_CONNECT_ERROR
	eventUnreachable    = C.RDMA_CM_EVENT_UNREACHABLE
	eventRejected       = C.RDMA_CM_EVENT_REJECTED
	eventDisconnected   = C.RDMA_CM_EVENT_DISCONNECTED
	eventDeviceRemoval  = C.RDMA_CM_EVENT_DEVICE_REMOVAL
)

// loadCalls loads the library and fills a function table that lives as long as the process.
func loadCalls(path string) (calls, error) {
	mem, err := clib.Zeroed("rdmacm_calls", 1, C.sizeof_cm_calls)
	if err != nil {
		return calls{}, err
	}
	t := (*C.cm_calls)(mem)
	list := []clib.Symbol{
		{To: &t.create_event_channel, Name: "rdma_create_event_channel"},
		{To: &t.destroy_event_channel, Name: "rdma_destroy_event_channel"},
		{To: &t.create_id, Name: "rdma_create_id"},
		{To: &t.destroy_id, Name: "rdma_destroy_id"},
		{To: &t.bind_addr, Name: "rdma_bind_addr"},
		{To: &t.listen, Name: "rdma_listen"},
		{To: &t.get_src_port, Name: "rdma_get_src_port"},
		{To: &t.resolve_addr, Name: "rdma_resolve_addr"},
		{To: &t.resolve_route, Name: "rdma_resolve_route"},
		{To: &t.connect, Name: "rdma_connect"},
		{To: &t.accept, Name: "rdma_accept"},
		{To: &t.reject, Name: "rdma_reject"},
		{To: &t.get_cm_event, Name: "rdma_get_cm_event"},
		{To: &t.ack_cm_event, Name: "rdma_ack_cm_event"},
	}
	for i := range list {
		list[i].Version = "RDMACM_1.0"
	}
	if err := clib.Load(path, "librdmacm", "rdma-core", list); err != nil {
		C.free(unsafe.Pointer(t))
		return calls{}, err
	}
	return calls{t}, nil
}

func (c calls) createEventChannel() (*channel, error) {
	ch, err := C.cm_create_event_channel(c.t)
	if ch == nil {
		return nil, clib.Failed("rdma_create_event_channel", err)
	}
	return ch, nil
}

func (c calls) destroyEventChannel(ch *channel) { C.cm_destroy_event_channel(c.t, ch) }

func (c calls) createID(ch *channel) (ID, error) {
	var id *C.struct_rdma_cm_id
	if rc, err := C.cm_create_id(c.t, ch, &id); rc != 0 {
		return nil, clib.Failed("rdma_create_id", err)
	}
	return id, nil
}

func (c calls) destroyID(id ID) { C.cm_destroy_id(c.t, id) }

func (c calls) bindAddr(id ID, a netip.AddrPort) error {
	if rc, err := C.cm_bind_addr(c.t, id, sockaddr(a)); rc != 0 {
		return clib.Failed("rdma_bind_addr", err)
	}
	return nil
}

func (c calls) listen(id ID, backlog int) error {
	if rc, err := C.cm_listen(c.t, id, C.int(backlog)); rc != 0 {
		return clib.Failed("rdma_listen", err)
	}
	return nil
}

func (c calls) srcPort(id ID) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, uint16(C.cm_get_src_port(c.t, id))))
}

func (c calls) resolveAddr(id ID, dst netip.AddrPort, ms int) error {
	if rc, err := C.cm_resolve_addr(c.t, id, sockaddr(dst), C.int(ms)); rc != 0 {
		return clib.Failed("rdma_resolve_addr", err)
	}
	return nil
}

func (c calls) resolveRoute(id ID, ms int) error {
	if rc, err := C.cm_resolve_route(c.t, id, C.int(ms)); rc != 0 {
		return clib.Failed("rdma_resolve_route", err)
	}
	return nil
}

func (c calls) connect(id ID, p Param, data []byte) error {
	if rc, err := C.cm_connect(c.t, id, p.c(), unsafe.Pointer(unsafe.SliceData(data)), C.uint8_t(len(data))); rc != 0 {
		return clib.Failed("rdma_connect", err)
	}
	return nil
}

func (c calls) accept(id ID, p Param) error {
	if rc, err := C.cm_accept(c.t, id, p.c()); rc != 0 {
		return clib.Failed("rdma_accept", err)
	}
	return nil
}

func (c calls) reject(id ID) { C.cm_reject(c.t, id) }

// next returns the next event and acknowledges it at once, because rdma_destroy_id waits for the acknowledgement.
func (c calls) next(ch *channel) (ev rawEvent, ok bool) {
	var e *C.struct_rdma_cm_event
	if C.cm_get_cm_event(c.t, ch, &e) != 0 {
		return ev, false
	}
	ev = rawEvent{kind: int(e.event), status: int(e.status), id: e.id}
	if ev.kind == eventConnectRequest {
		p := (*C.struct_rdma_conn_param)(unsafe.Pointer(&e.param))
		ev.reads = uint8(p.initiator_depth)
		if p.private_data != nil {
			ev.data = C.GoBytes(p.private_data, C.int(p.private_data_len))
		}
	}
	C.cm_ack_cm_event(c.t, e)
	return ev, true
}

func (p Param) c() C.struct_rdma_conn_param {
	return C.struct_rdma_conn_param{responder_resources: C.uint8_t(p.In), initiator_depth: C.uint8_t(p.Out), qp_num: C.uint32_t(p.QPN)}
}

// fdOf returns the file descriptor of a channel.
func fdOf(ch *channel) int { return int(ch.fd) }

// deviceOf returns the name of the device that an id is bound to; "": none.
func deviceOf(id ID) string {
	if id.verbs == nil {
		return ""
	}
	return C.GoString(&id.verbs.device.name[0])
}

// sockaddr returns a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) unsafe.Pointer {
	port := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, a.Port()))
	if ip := a.Addr().Unmap(); ip.Is4() {
		return unsafe.Pointer(&unix.RawSockaddrInet4{Family: syscall.AF_INET, Port: port, Addr: ip.As4()})
	}
	return unsafe.Pointer(&unix.RawSockaddrInet6{Family: syscall.AF_INET6, Port: port, Addr: a.Addr().As16()})
}

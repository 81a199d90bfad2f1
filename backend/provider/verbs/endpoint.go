package verbs

/*
#include <errno.h>
#include "verbs.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"gorail/backend/provider"
)

// address is what a peer must know of an endpoint.
type address struct {
	QPN, PSN uint32
	LID, MTU uint16
	Ethernet bool
	Reads    uint8
	GID      [16]byte
}

const (
	addressForm = 1 // first byte; another is another layout
	addressLen  = 1 + 4 + 4 + 2 + 2 + 1 + 1 + 16
)

func (a address) encode() []byte {
	b := append(make([]byte, 0, addressLen), addressForm)
	b = binary.BigEndian.AppendUint32(b, a.QPN)
	b = binary.BigEndian.AppendUint32(b, a.PSN)
	b = binary.BigEndian.AppendUint16(b, a.LID)
	b = binary.BigEndian.AppendUint16(b, a.MTU)
	eth := byte(0)
	if a.Ethernet {
		eth = 1
	}
	return append(append(b, eth, a.Reads), a.GID[:]...)
}

func decodeAddress(b []byte) (a address, ok bool) {
	if len(b) != addressLen || b[0] != addressForm || b[13] > 1 {
		return a, false
	}
	a = address{QPN: binary.BigEndian.Uint32(b[1:]), PSN: binary.BigEndian.Uint32(b[5:]), LID: binary.BigEndian.Uint16(b[9:]),
		MTU: binary.BigEndian.Uint16(b[11:]), Ethernet: b[13] == 1, Reads: b[14], GID: [16]byte(b[15:])}
	return a, a.QPN < 1<<24 && a.PSN < 1<<24 && a.MTU >= 256 && a.Reads > 0
}

// endpoint implements provider.Endpoint: a queue pair.
type endpoint struct {
	rail *rail
	addr address
	core unsafe.Pointer

	mu sync.Mutex
	c  *C.vb_qp // nil when closed
}

// OpenEndpoint implements ibv_create_qp and the step to INIT. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	if r.cm != nil {
		return r.openIW()
	}
	g, err := r.source()
	if err != nil {
		return nil, fmt.Errorf("%w: %s/%s: %w", provider.ErrEndpoint, r.dev.Fabric, r.dev.Name, err)
	}
	gid := g.addr.As16()
	var c *C.vb_qp
	var a C.vb_addr
	var step *C.char
	if rc := C.vb_ep_open(r.c, C.int(g.index), (*C.uint8_t)(&gid[0]), &c, &a, &step); rc != 0 {
		return nil, r.openError(step, rc)
	}
	return &endpoint{rail: r, c: c, core: unsafe.Pointer(c), addr: address{QPN: uint32(a.qpn), PSN: uint32(a.psn), LID: uint16(a.lid),
		MTU: uint16(a.mtu), Ethernet: a.ethernet != 0, Reads: uint8(a.reads), GID: gid}}, nil
}

func (r *rail) openError(step *C.char, rc C.int) error {
	what := C.GoString(step)
	if rc == -C.ENOSPC {
		what += fmt.Sprintf(" beyond %d entries, the most that the device has (max_cqe; fewer peers, fewer qps_per_rail, or more devices)", r.c.dev.max_cqe)
	}
	return r.error(provider.ErrEndpoint, what, rc)
}

func (e *endpoint) Addr() []byte         { return e.addr.encode() }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements the steps to RTR and RTS. On RoCE the kernel looks for the way to the peer's address, which may take a
// second; nothing else waits meanwhile. The address is the peer's word. The error wraps provider.ErrBadAddress.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.rail.dev
	if e.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	a, ok := decodeAddress(peer)
	if !ok || a.Ethernet != e.addr.Ethernet {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	c := C.vb_addr{qpn: C.uint32_t(a.QPN), psn: C.uint32_t(a.PSN), lid: C.uint16_t(a.LID), mtu: C.uint16_t(a.MTU), reads: C.uint8_t(a.Reads)}
	for i, b := range a.GID {
		c.gid[i] = C.uint8_t(b)
	}
	var step *C.char
	if rc := C.vb_ep_connect(e.rail.c, e.c, &c, &step); rc != 0 {
		return e.rail.error(provider.ErrBadAddress, C.GoString(step)+" to "+e.rail.entry.peerName(a), rc)
	}
	return nil
}

// Close implements ibv_modify_qp to ERR and ibv_destroy_qp: the peer's access ends with it, and what was posted is reported by
// poll as ECANCELED unless it had ended before. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	if rc := C.vb_ep_close(e.rail.c, e.c); rc != 0 {
		return e.rail.error(provider.ErrEndpoint, "ibv_destroy_qp", rc)
	}
	e.c = nil
	return nil
}

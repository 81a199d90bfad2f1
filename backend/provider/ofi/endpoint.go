package ofi

/*
#include "ofi.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"gorail/backend/provider"
)

// endpoint implements provider.Endpoint. Where Caps.CanFence it is an endpoint of libfabric's; elsewhere it is an address
// over the rail's one endpoint.
type endpoint struct {
	rail *rail
	addr []byte
	core unsafe.Pointer

	mu   sync.Mutex
	c    *C.ofi_ep    // nil when closed
	peer []byte       // what Connect was given
	from []netip.Addr // addresses that the peer may connect from, besides the one that Connect is given
}

// OpenEndpoint implements fi_endpoint, fi_ep_bind, fi_enable and fi_getname. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	var c *C.ofi_ep
	var addr [C.OFI_ADDR_MAX]byte
	var n C.size_t
	var step *C.char
	if rc := C.ofi_ep_open(r.c, &c, unsafe.Pointer(&addr[0]), &n, &step); rc != 0 {
		return nil, r.portsUsed(r.error(provider.ErrEndpoint, C.GoString(step), rc), rc)
	}
	return &endpoint{rail: r, c: c, core: unsafe.Pointer(c), addr: bytes.Clone(addr[:n])}, nil
}

// Addr is libfabric's raw address, a sockaddr for the tcp family.
func (e *endpoint) Addr() []byte { return e.addr }

func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements fi_av_insert. The tcp family connects when the first operation is posted and both sides poll. The
// address is the peer's word: its form is checked against ours. The error wraps provider.ErrBadAddress.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.rail.dev
	if e.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	if !sameForm(peer, e.addr, e.rail.entry.ip) {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	if err := e.admit(peer); err != nil {
		return err
	}
	e.peer = bytes.Clone(peer)
	var room [C.OFI_ADDR_MAX]byte // libfabric never reads behind the peer's bytes
	copy(room[:], peer)
	if rc := C.ofi_ep_connect(e.rail.c, e.c, unsafe.Pointer(&room[0])); rc != 0 {
		return e.rail.error(provider.ErrBadAddress, "fi_av_insert", rc)
	}
	return nil
}

// sameForm compares length and, for socket addresses, family, and wants a port and an address to be there.
func sameForm(peer, own []byte, ip bool) bool {
	if len(peer) != len(own) || len(peer) == 0 || len(peer) > C.OFI_ADDR_MAX {
		return false
	}
	if a := sockaddr(own); ip && a.IsValid() {
		p := sockaddr(peer)
		return p.IsValid() && p.Is4() == a.Is4() && !p.IsUnspecified() && !p.IsMulticast() && (peer[2] != 0 || peer[3] != 0)
	}
	return true
}

// Close implements fi_close and fi_av_remove. What was posted comes out of poll as ECANCELED afterwards, so contexts live
// on until then; their local buffers are no longer touched. On a shared endpoint (no Caps.CanFence) nothing is cancelled:
// drain first. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	if rc := C.ofi_ep_close(e.rail.c, e.c); rc != 0 {
		return e.rail.error(provider.ErrEndpoint, "fi_close", rc)
	}
	e.c = nil
	return nil
}

package shm

/*
#include "local.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"gorail/backend/provider"
)

// endpoint implements provider.Endpoint: a ring for the peer's messages, and its lanes.
type endpoint struct {
	rail *rail
	core unsafe.Pointer
	addr []byte

	mu sync.Mutex
	c  *C.lc_ep // nil when closed
}

var _ provider.Importer = (*endpoint)(nil)

const (
	addressForm = 4 // first byte; another is another layout
	addressLen  = 1 + C.sizeof_lc_addr
)

// OpenEndpoint implements memfd_create. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	var c *C.lc_ep
	var step *C.char
	if rc := C.lc_ep_open(r.c, &c, &step); rc != 0 {
		return nil, r.error(provider.ErrEndpoint, C.GoString(step), rc)
	}
	addr := append([]byte{addressForm}, C.GoBytes(unsafe.Pointer(&c.addr), C.sizeof_lc_addr)...)
	return &endpoint{rail: r, c: c, core: unsafe.Pointer(c), addr: addr}, nil
}

func (e *endpoint) Addr() []byte         { return e.addr }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements connect and sendmsg of a unix socket: the peer gets what it needs to reach us. The address is the peer's word; so is all
// that it shares, and is checked. Which process it is the kernel says. The error wraps provider.ErrBadAddress.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return fmt.Errorf("%w: %s: endpoint is closed", provider.ErrEndpoint, e.rail.dev.Name)
	}
	var a C.lc_addr
	if len(peer) != addressLen || peer[0] != addressForm {
		return fmt.Errorf("%w: %s: %x", provider.ErrBadAddress, e.rail.dev.Name, peer)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&a)), C.sizeof_lc_addr), peer[1:])
	if !abstract(int(a.name_len), peer[2:]) {
		return fmt.Errorf("%w: %s: %x", provider.ErrBadAddress, e.rail.dev.Name, peer)
	}
	var step *C.char
	if rc := C.lc_ep_connect(e.c, &a, &step); rc != 0 {
		return e.rail.error(provider.ErrBadAddress, C.GoString(step), rc)
	}
	return nil
}

// abstract says that a name of n bytes is of a socket in the abstract namespace.
func abstract(n int, name []byte) bool { return n >= 2 && n <= len(C.lc_addr{}.name) && name[0] == 0 }

// Close ends the peer's access and our own operations, which are reported by poll as ECANCELED unless they had ended before. It waits for
// copies of our own, a second at most for one that the peer makes for us and another for those that it makes for itself; the endpoint is
// closed in any case.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	rc := C.lc_ep_close(e.c)
	e.c = nil
	if rc != 0 {
		return e.rail.error(provider.ErrEndpoint, "close", rc)
	}
	return nil
}

// Forget implements provider.Importer.
func (e *endpoint) Forget(region uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c != nil {
		C.lc_import_drop(e.c, C.uint32_t(region))
	}
}

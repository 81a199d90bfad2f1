package fake

/*
#include "fake.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider"
)

// endpoint implements provider.Endpoint. Its address has eight bytes and is valid in this process and fabric.
type endpoint struct {
	rail *Rail
	addr []byte
	core unsafe.Pointer

	mu sync.Mutex
	c  *C.fake_ep // nil when closed
}

// OpenEndpoint implements provider.Rail.
func (r *Rail) OpenEndpoint() (provider.Endpoint, error) {
	c := C.fake_ep_open(r.c)
	if c == nil {
		return nil, fmt.Errorf("%w: fake/%s: %w", provider.ErrEndpoint, r.dev.Name, syscall.ENOMEM)
	}
	e := &endpoint{rail: r, c: c, core: unsafe.Pointer(c), addr: binary.BigEndian.AppendUint64(nil, uint64(C.fake_ep_id(c)))}
	if r.caps.Secured {
		return &securedEndpoint{endpoint: e}, nil
	}
	return e, nil
}

func (e *endpoint) Addr() []byte         { return e.addr }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements provider.Endpoint. Posts return EAGAIN while there is no endpoint at the address, or no longer
// one.
func (e *endpoint) Connect(peer []byte) error { return e.connect(peer, C.fake_proof{}) }

func (e *endpoint) connect(peer []byte, proof C.fake_proof) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(peer) != 8 || binary.BigEndian.Uint64(peer) == 0 {
		return fmt.Errorf("%w: fake/%s: %x", provider.ErrBadAddress, e.rail.dev.Name, peer)
	}
	if e.c == nil {
		return fmt.Errorf("%w: fake/%s: endpoint is closed", provider.ErrEndpoint, e.rail.dev.Name)
	}
	if rc := C.fake_ep_connect(e.c, C.uint64_t(binary.BigEndian.Uint64(peer)), &proof); rc != 0 {
		return fmt.Errorf("%w: fake/%s: %w", provider.ErrBadAddress, e.rail.dev.Name, syscall.Errno(-rc))
	}
	return nil
}

// Close implements provider.Endpoint. Operations of both directions complete with ECANCELED.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c != nil {
		C.fake_ep_close(e.c)
		e.c = nil
	}
	return nil
}

// region implements provider.MR. Its descriptor is the fake_mr.
type region struct {
	rail      *Rail
	key, base uint64
	desc      unsafe.Pointer

	mu sync.Mutex
	c  *C.fake_mr // nil when closed
}

// Later implements provider.Rail.
func (r *Rail) Later(uint64, uint64) bool { return false }

// Register implements provider.Rail. ENOKEY: the key is in use. EINVAL: more than Caps.MaxMR bytes.
func (r *Rail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	r.mu.Lock()
	hook := r.onRegister
	r.mu.Unlock()
	if hook != nil {
		if err := hook(addr, length); err != nil {
			return nil, fmt.Errorf("%w: fake/%s: %w", provider.ErrRegister, r.dev.Name, err)
		}
	}
	if most := r.caps.MaxMR; most > 0 && length > most {
		return nil, fmt.Errorf("%w: fake/%s: %d bytes, at most %d: %w", provider.ErrRegister, r.dev.Name, length, most, syscall.EINVAL)
	}
	m := &region{rail: r}
	var got C.uint64_t
	rc := C.fake_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), C.uint64_t(key), C.uint8_t(peers), &m.c, &got)
	if rc != 0 {
		return nil, fmt.Errorf("%w: fake/%s: %d bytes at %#x, key %#x: %w", provider.ErrRegister, r.dev.Name, length, addr, key,
			syscall.Errno(-rc))
	}
	m.key, m.desc = uint64(got), unsafe.Pointer(m.c)
	if r.caps.VirtAddr {
		m.base = addr
	}
	if r.caps.Keyed {
		return keyedRegion{m}, nil
	}
	return m, nil
}

func (m *region) Key(provider.Salt) uint64 { return m.key }
func (m *region) Base() uint64             { return m.base }
func (m *region) Desc() unsafe.Pointer     { return m.desc }
func (m *region) Same() error              { return nil }

// Close implements provider.MR. Later operations on its key fail with EACCES.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c != nil {
		C.fake_mr_close(m.rail.c, m.c)
		m.c = nil
	}
	return nil
}

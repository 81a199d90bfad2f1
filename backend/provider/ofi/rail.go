package ofi

/*
#include "ofi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
)

// rail implements provider.Rail: one domain with its address vector and completion queue. The C side holds the lock.
type rail struct {
	dev   provider.Device
	entry *entry // keeps the fi_info that the C side has borrowed
	c     *C.ofi_rail
	caps  provider.Caps
	notes []string
	ports Ports

	mu     sync.Mutex
	closed bool

	newsMu   sync.Mutex
	sweeping bool   // a sweep is due
	said     bool   // that listening sockets can't be filtered
	turned   uint64 // connections turned away, as told last
	turnedAt time.Time
}

// openRail implements fi_fabric, fi_domain, fi_av_open and fi_cq_open. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, q quirks, ports Ports, t Tuning) (*rail, error) {
	lib := e.handle.lib
	if err := t.check(e, q); err != nil {
		return nil, err
	}
	cq := C.ofi_quirks{per_peer: flag(q.perPeer), no_trywait: flag(q.noTrywait)}
	cports := C.ofi_ports{first: C.uint16_t(ports.First), last: C.uint16_t(ports.Last)}
	var c *C.ofi_rail
	var step *C.char
	if rc := C.ofi_rail_open(lib.lib, (*C.struct_fi_info)(e.info), &cq, &cports, C.uint32_t(t.CQDepth), &c, &step); rc != 0 {
		return nil, fmt.Errorf("%w: %s/%s: %s: %w%s; take another with option devices or provider (%s)", provider.ErrUnusable,
			d.Fabric, d.Name, C.GoString(step), lib.error(rc), t.blame(e, C.GoString(step)), lib.Describe())
	}
	b := &c.base
	return &rail{dev: d, entry: e, c: c, ports: ports, notes: append(t.notes(e, uint32(lib.lib.version)), emulation(c)...), caps: provider.Caps{
		Ordered:          b.ordered != 0,
		Chained:          b.chained != 0,
		DeliveryComplete: c.caps.delivery != 0,
		VirtAddr:         c.caps.virt_addr != 0,
		ProviderKeys:     c.caps.prov_key != 0,
		KeySize:          int(c.caps.key_size),
		LocalDesc:        c.caps.local_desc != 0,
		EndpointMR:       c.caps.endpoint_mr != 0,
		Pins:             d.Hardware,
		CanFence:         q.perPeer,
		Descriptors:      descriptors(q.perPeer),
		SharedEndpoint:   b.shared_ep != nil,
		IOVLimit:         int(b.iov_limit),
		TxDepth:          int(b.tx_depth),
		RxDepth:          int(b.rx_depth),
		MaxMsg:           uint64(b.max_msg),
		MaxSend:          uint64(c.caps.max_send),
	}}, nil
}

// emulation says what libfabric does by messages that the device should do.
func emulation(c *C.ofi_rail) []string {
	what := map[[2]bool]string{{true, false}: "READ is", {false, true}: "WRITE is", {true, true}: "READ and WRITE are"}
	if s, ok := what[[2]bool{c.caps.emulated_read != 0, c.caps.emulated_write != 0}]; ok {
		return []string{s + " emulated by libfabric with messages and copies: the device or its driver has no RDMA for it, or FI_EFA_USE_DEVICE_RDMA=0 is set"}
	}
	return nil
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.c) }

func (r *rail) error(phase error, what string, rc C.int) error {
	err := fmt.Errorf("%w: %s/%s: %s: %w", phase, r.dev.Fabric, r.dev.Name, what, r.entry.handle.lib.error(rc))
	if noDescriptors() { // libfabric reports that as EIO at times
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	return err
}

// Register implements fi_mr_regattr. It costs 0.3-0.5 us and 300 bytes on the tcp family, whatever the length; there the
// memory need not be mapped. The error wraps provider.ErrRegister and the errno: ENOKEY is a key in use.
func (r *rail) Register(addr, length, key uint64) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s/%s: range %#x + %d", provider.ErrRegister, r.dev.Fabric, r.dev.Name, addr, length)
	}
	m := &region{rail: r}
	var ckey C.uint64_t
	rc := C.ofi_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), C.uint64_t(key), &m.c, &ckey, &m.desc)
	if rc != 0 {
		hint := ""
		if e := syscall.Errno(-rc); e == syscall.ENOMEM || e == syscall.EPERM {
			hint = " (raise the limit on locked memory: ulimit -l)"
		}
		return nil, r.error(provider.ErrRegister, fmt.Sprintf("fi_mr_regattr of %d bytes at %#x%s", length, addr, hint), rc)
	}
	m.key = uint64(ckey)
	if r.caps.VirtAddr {
		m.base = addr
	}
	return m, nil
}

// Close implements fi_close of queue, address vector, domain and fabric. With endpoints or regions open it fails with
// EBUSY and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	eps, mrs := r.c.open_eps, r.c.open_mrs
	rc := C.ofi_rail_close(r.c)
	runtime.KeepAlive(r.entry)
	if -rc == C.int(syscall.EBUSY) && (eps != 0 || mrs != 0) {
		return r.error(provider.ErrUnusable, fmt.Sprintf("close with %d endpoints and %d regions open", eps, mrs), rc)
	}
	r.closed = true
	if rc != 0 {
		return r.error(provider.ErrUnusable, "fi_close", rc)
	}
	return nil
}

// region implements provider.MR.
type region struct {
	rail      *rail
	c         *C.struct_fid_mr
	desc      unsafe.Pointer
	key, base uint64

	mu     sync.Mutex
	closed bool
}

func (m *region) Key() uint64          { return m.key }
func (m *region) Base() uint64         { return m.base }
func (m *region) Desc() unsafe.Pointer { return m.desc }

// Close implements fi_close. Operations that have begun still land: closing a region is no fence.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if rc := C.ofi_mr_close(m.rail.c, m.c); rc != 0 {
		return m.rail.error(provider.ErrRegister, "fi_close of a region", rc)
	}
	m.closed = true
	return nil
}

var errAddress = errors.New("not an address of this fabric")

// descriptors of an endpoint of the tcp family: it listens, and has a connection in each direction. A shared one has none for each peer.
func descriptors(perPeer bool) int {
	if perPeer {
		return 3
	}
	return 0
}

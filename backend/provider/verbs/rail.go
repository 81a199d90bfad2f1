package verbs

/*
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail: one port with its protection domain and completion queue.
type rail struct {
	dev   provider.Device
	entry *entry
	c     *C.vb_rail
	cm    *connector // of iWARP, else nil
	gpus  *vram.Direct

	mu     sync.Mutex
	closed bool
	gid    gid   // that new endpoints use
	noGID  error // why there is none now
}

// openRail implements ibv_open_device, ibv_alloc_pd and ibv_create_cq. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, o Options) (*rail, error) {
	opt := C.vb_opts{gid_index: C.int(e.asked), // InfiniBand's: nobody asks within the subnet
		sl: C.uint8_t(o.ServiceLevel), tc: C.uint8_t(o.TrafficClass),
		timeout: C.uint8_t(o.Timeout), retry_cnt: C.uint8_t(o.RetryCount), rnr_retry: C.uint8_t(o.RNRRetry), max_reads: C.uint8_t(o.MaxReads),
		pkey_index: C.uint16_t(o.PKeyIndex), mtu: C.int(o.MTU), odp: flag(o.ODP)}
	name := C.CString(e.port.device)
	defer C.free(unsafe.Pointer(name))
	var c *C.vb_rail
	var step *C.char
	if rc := C.vb_rail_open(e.lib.c, name, C.uint8_t(e.port.number), &opt, &c, &step); rc != 0 {
		return nil, fmt.Errorf("%w: %s/%s: %s: %w%s; take another with option devices", provider.ErrUnusable, d.Fabric, d.Name,
			C.GoString(step), syscall.Errno(-rc), limit(syscall.Errno(-rc)))
	}
	r := &rail{dev: d, entry: e, c: c, gid: e.gid}
	r.gpus = r.direct(o.CUDAPath)
	if e.cm != nil {
		var err error
		if r.cm, err = newConnector(r, e.cm, o.Ports, o.connectTime); err != nil {
			C.vb_rail_close(c)
			return nil, err
		}
	}
	return r, nil
}

// maxReads is how many READs of ours may be under way on a connection.
func (r *rail) maxReads() uint8 {
	return uint8(C.vb_at_most(r.c.dev.max_qp_init_rd_atom, C.uint32_t(r.c.opt.max_reads)))
}

// limit says which limit an errno of registration or creation speaks of, and how to raise it.
func limit(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOMEM, syscall.EAGAIN:
		if kib, limited := memlock(); limited {
			return fmt.Sprintf(" (RLIMIT_MEMLOCK: %d KiB of memory may be locked; raise it: %s)", kib, raiseMemlock)
		}
		return " (out of memory, or of the device's resources)"
	case syscall.EMFILE:
		return " (out of file descriptors: ulimit -n)"
	}
	return ""
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.c) }
func (r *rail) Notes() []string         { return nil }

// mostMR is what regions are sliced by: one of more than 4 GiB was seen at 6.0 GB/s where slices of 3.5 GiB gave 9.24 (mlx5,
// 4 KiB pages, IOMMU on).
const mostMR = 3584 << 20

// maxMR is that, or less where the device takes less.
func maxMR(device uint64) uint64 {
	if device > 0 && device < mostMR {
		return device
	}
	return mostMR
}

func (r *rail) Caps() provider.Caps {
	b := &r.c.base
	return provider.Caps{Ordered: true, Chained: true, DeliveryComplete: true, VirtAddr: true, ProviderKeys: true, KeySize: 4,
		LocalDesc: true, Pins: r.c.opt.odp == 0, DMABuf: r.c.dmabuf != 0, CanFence: true, IOVLimit: int(b.iov_limit), TxDepth: int(b.tx_depth), RxDepth: int(b.rx_depth),
		MaxMR: maxMR(uint64(r.c.dev.max_mr_size)), MaxMsg: uint64(b.max_msg), MaxSend: uint64(b.msg_size)}
}

func (r *rail) error(phase error, what string, rc C.int) error {
	errno := syscall.Errno(-rc)
	return fmt.Errorf("%w: %s/%s: %s: %w%s", phase, r.dev.Fabric, r.dev.Name, what, errno, limit(errno))
}

// Register implements ibv_reg_mr_iova2 (ibv_reg_mr before rdma-core 28): the memory must be mapped and is pinned, unless it is
// registered on demand (option ib_odp). key is ignored, the device chooses. The error wraps provider.ErrRegister and the errno.
func (r *rail) Register(addr, length, _ uint64) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s/%s: range %#x + %d", provider.ErrRegister, r.dev.Fabric, r.dev.Name, addr, length)
	}
	var mr *C.struct_ibv_mr
	if rc := C.vb_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), C.int(r.c.opt.odp), &mr); rc != 0 {
		return nil, r.refused(fmt.Sprintf("ibv_reg_mr of %d bytes at %#x", length, addr), length, rc)
	}
	return &region{rail: r, c: mr, base: addr}, nil
}

// Close implements ibv_destroy_cq, ibv_dealloc_pd and ibv_close_device. With endpoints or regions open it fails with EBUSY
// and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	eps := int(r.c.open_eps)
	if r.cm != nil {
		eps = r.cm.open()
	}
	if eps != 0 || r.c.open_mrs != 0 {
		return r.error(provider.ErrUnusable, fmt.Sprintf("close with %d endpoints and %d regions open", eps, r.c.open_mrs), -C.int(syscall.EBUSY))
	}
	r.closed = true
	var err error
	if r.cm != nil && !r.cm.stop(func() { C.vb_rail_close(r.c) }) {
		// when the last connecting that was given up has come back
	} else if rc := C.vb_rail_close(r.c); rc != 0 {
		err = r.error(provider.ErrUnusable, "ibv_close_device", rc)
	}
	return errors.Join(err, r.gpus.Close())
}

// region implements provider.MR.
type region struct {
	rail *rail
	base uint64

	mu sync.Mutex
	c  *C.struct_ibv_mr // nil when closed
}

func (m *region) Key() uint64          { return uint64(m.c.rkey) }
func (m *region) Base() uint64         { return m.base }
func (m *region) Desc() unsafe.Pointer { return unsafe.Pointer(m.c) }

// Close implements ibv_dereg_mr.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return nil
	}
	if rc := C.vb_mr_close(m.rail.c, m.c); rc != 0 {
		return m.rail.error(provider.ErrRegister, "ibv_dereg_mr", rc)
	}
	m.c = nil
	return nil
}

var errAddress = errors.New("not an address of an InfiniBand or RoCE endpoint")

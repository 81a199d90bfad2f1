package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail: one port with its protection domain and completion queue.
type rail struct {
	dev   provider.Device
	entry *entry
	opt   Options
	cm    *connector // of iWARP, else nil
	gpus  *vram.Direct

	device
	endpoints, regions atomic.Int32

	mu     sync.Mutex
	closed bool
	gid    gid   // that new endpoints use
	noGID  error // why there is none now
}

// openRail opens the device's port. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, o Options) (*rail, error) {
	r := &rail{dev: d, entry: e, opt: o, gid: e.gid}
	if err := r.device.open(e, o.IB); err != nil {
		return nil, fmt.Errorf("%w; take another with option devices", r.error(provider.ErrUnusable, err, ""))
	}
	r.gpus = r.direct(o.CUDAPath)
	if e.cm != nil {
		var err error
		if r.cm, err = newConnector(r, e.cm, o.Ports, o.connectTime); err != nil {
			_ = r.device.close()
			return nil, err
		}
	}
	return r, nil
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
	return provider.Caps{ProviderKeys: true, KeySize: 4, Pins: !r.opt.ODP, MaxMR: maxMR(r.attr.maxMRSize), MaxMsg: uint64(r.c.base.max_msg)}
}

// error is that of a call (clib.CallError), with what it was for and the limit that it has met.
func (r *rail) error(phase, err error, what string) error {
	call := clib.As(err)
	return fmt.Errorf("%w: %s/%s: %s%s: %w%s", phase, r.dev.Fabric, r.dev.Name, call.Call, what, call.Errno, limit(call.Errno))
}

// Register implements ibv_reg_mr_iova2 (ibv_reg_mr before rdma-core 28): the memory must be mapped and is pinned, unless it is
// registered on demand (option ib_odp). key is ignored, the device chooses. The error wraps provider.ErrRegister and the errno.
func (r *rail) Register(addr, length, _ uint64) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s/%s: range %#x + %d", provider.ErrRegister, r.dev.Fabric, r.dev.Name, addr, length)
	}
	access := uint32(peersAccess)
	if r.opt.ODP {
		access |= accessOnDemand
	}
	mr, err := register(r.c, addr, length, access)
	if err != nil {
		return nil, r.refused(fmt.Sprintf("ibv_reg_mr of %d bytes at %#x", length, addr), length, err)
	}
	return r.opened(mr, addr), nil
}

// Close implements ibv_destroy_cq, ibv_dealloc_pd and ibv_close_device. With endpoints or regions open it fails with EBUSY
// and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	eps, mrs := int(r.endpoints.Load()), r.regions.Load()
	if r.cm != nil {
		eps = r.cm.open()
	}
	if eps != 0 || mrs != 0 {
		busy := &clib.CallError{Call: fmt.Sprintf("close with %d endpoints and %d regions open", eps, mrs), Errno: syscall.EBUSY}
		return r.error(provider.ErrUnusable, busy, "")
	}
	r.closed = true
	var err error
	if r.cm != nil && !r.cm.stop(r.closeLate) {
		// when the last connecting that was given up has come back
	} else if e := r.device.close(); e != nil {
		err = r.error(provider.ErrUnusable, e, "")
	}
	return errors.Join(err, r.gpus.Close())
}

// closeLate leaves the device open where an endpoint could not be closed.
func (r *rail) closeLate() {
	if r.endpoints.Load() == 0 {
		_ = r.device.close()
	}
}

// region implements provider.MR.
type region struct {
	rail *rail
	base uint64

	mu sync.Mutex
	c  *ibvMR // nil when closed
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
	if err := m.rail.lib.deregMR(m.c); err != nil {
		return m.rail.error(provider.ErrRegister, err, "")
	}
	m.c = nil
	m.rail.regions.Add(-1)
	return nil
}

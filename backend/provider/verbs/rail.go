package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// rail implements provider.Rail: one port with its protection domain and completion queues.
type rail struct {
	dev   provider.Device // as it was opened; at is the one of now
	at    atomic.Pointer[provider.Device]
	entry *entry
	opt   Options
	gpus  *gpu.Direct

	device
	endpoints, regions atomic.Int32
	destroying         sync.WaitGroup        // calls of ibv_destroy_qp
	notDestroyed       atomic.Pointer[error] // the last error of one

	mu     sync.Mutex
	closed bool
	gid    gid   // GID for new endpoints
	noGID  error // why there is no GID now
}

var _ provider.Mover = (*rail)(nil)

// openRail opens the device's port. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, o Options) (*rail, error) {
	r := &rail{dev: d, entry: e, opt: o, gid: e.gid}
	r.at.Store(&d)
	if err := r.device.open(e, o.IB); err != nil {
		return nil, fmt.Errorf("%w; take another with option devices", r.error(provider.ErrUnusable, err, ""))
	}
	r.gpus = r.direct(o.CUDAPath)
	return r, nil
}

func (r *rail) Device() provider.Device { return *r.at.Load() }

func (r *rail) Caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 4, PinsMemory: true, MaxMR: maxMR(r.attr.MaxMRSize), MaxMsg: r.c.MaxMsg()}
}

func (r *rail) Notes() []string      { return nil }
func (r *rail) Core() unsafe.Pointer { return r.c.Core() }

// error wraps the error of a call (clib.CallError) with the device, the object and the limit behind it.
func (r *rail) error(phase, err error, what string) error {
	call := clib.As(err)
	return fmt.Errorf("%w: %s/%s: %s%s: %w%s", phase, r.dev.Fabric, r.dev.Name, call.Call, what, call.Errno, limit(call.Errno))
}

// Close implements ibv_destroy_cq, ibv_dealloc_pd and ibv_close_device. While endpoints or regions are open, Close
// fails with EBUSY and changes nothing. It waits for queue pairs that are being destroyed. A second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.destroying.Wait()
	eps, mrs := int(r.endpoints.Load()), r.regions.Load()
	if eps != 0 || mrs != 0 {
		busy := &clib.CallError{Call: fmt.Sprintf("close with %d endpoints and %d regions open", eps, mrs), Errno: syscall.EBUSY}
		err := r.error(provider.ErrUnusable, busy, "")
		if late := r.notDestroyed.Load(); late != nil {
			err = fmt.Errorf("%w; an endpoint was closed before: %w", err, *late)
		}
		return err
	}
	r.closed = true
	var err error
	if e := r.device.close(); e != nil {
		err = r.error(provider.ErrUnusable, e, "")
	}
	return errors.Join(err, r.gpus.Close())
}

func (r *rail) openError(err error) error {
	to := ""
	if clib.As(err).Call == "ibv_create_cq" {
		to = fmt.Sprintf(" of another completion queue (the device's max_cq is %d, its max_cqe %d; use fewer peers, fewer qps_per_rail, or more devices)",
			r.attr.MaxCQ, r.attr.MaxCQE)
	}
	return r.error(provider.ErrEndpoint, err, to)
}

// source returns the GID for new endpoints, or why there is none.
func (r *rail) source() (gid, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gid, r.noGID
}

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	dev   provider.Device // as it was opened; at is the one of now
	at    atomic.Pointer[provider.Device]
	entry *entry
	opt   Options
	gpus  *vram.Direct

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

func (r *rail) Device() provider.Device { return *r.at.Load() }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }
func (r *rail) Notes() []string         { return nil }

func (r *rail) Caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 4, PinsMemory: !r.opt.ODP, MaxMR: maxMR(r.attr.MaxMRSize), MaxMsg: r.c.MaxMsg()}
}

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
	if errors.Is(err, syscall.ENOSPC) {
		to = fmt.Sprintf(" beyond %d entries, the device's max_cqe (use fewer peers, fewer qps_per_rail, or more devices)", r.attr.MaxCQE)
	}
	return r.error(provider.ErrEndpoint, err, to)
}

// source returns the GID for new endpoints, or why there is none.
func (r *rail) source() (gid, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gid, r.noGID
}

// resolveGID looks the GID up again. It prefers the same address at any index, else an address of the same rank, which
// peers can reach equally. changed describes a change; err says why there is no GID any more. Open endpoints keep their
// GID.
func (r *rail) resolveGID() (changed string, err error) {
	e := r.entry
	list := e.port.reachable(e.sys, e.asked)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, had := r.gid, r.noGID == nil
	if e.asked < 0 {
		list = slices.DeleteFunc(list, func(g gid) bool { return g.rank() != was.rank() })
		if same := slices.IndexFunc(list, func(g gid) bool { return g.addr == was.addr }); same >= 0 {
			list = list[same : same+1]
		}
	}
	g, err := chooseGID(list, e.port.ethernet, e.asked)
	if err != nil {
		err = fmt.Errorf("%s is gone: %w", was.addr.Unmap(), err)
		r.noGID = err
		if !had {
			return "", nil
		}
		return "", err
	}
	r.gid, r.noGID = g, nil
	if had && r.gid == was {
		return "", nil
	}
	return fmt.Sprintf("%s at index %d, was %s at %d", g.addr.Unmap(), g.index, was.addr.Unmap(), was.index), nil
}

var errStays = errors.New("the rail has the address with which it was opened, always")

// Move implements provider.Mover for RoCE. The kernel enters an interface's new address into the GID table a moment later. An InfiniBand rail needs
// no address.
func (r *rail) Move(to netip.Prefix) error {
	e := r.entry
	if !e.port.ethernet {
		return fmt.Errorf("%w: %s/%s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, errStays)
	}
	list := slices.DeleteFunc(e.port.reachable(e.sys, e.asked), func(g gid) bool { return g.addr.Unmap() != to.Addr() })
	g, err := chooseGID(list, true, e.asked)
	if err != nil {
		return fmt.Errorf("%w: %s/%s: %s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, to.Addr(), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.Device()
	d.Addr, d.Subnet = to.Addr().String(), to.Masked().String()
	r.gid, r.noGID = g, nil
	r.at.Store(&d)
	return nil
}

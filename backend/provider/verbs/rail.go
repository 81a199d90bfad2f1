package verbs

import (
	"errors"
	"fmt"
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
	dev   provider.Device
	entry *entry
	opt   Options
	cm    connections // of iWARP, else nil
	gpus  *vram.Direct

	device
	endpoints, regions atomic.Int32

	mu     sync.Mutex
	closed bool
	gid    gid   // that new endpoints use
	noGID  error // why there is none now
}

// connections are those of a rail where rdma_cm connects: a connector.
type connections interface {
	openEndpoint() (provider.Endpoint, error)
	// open is how many endpoints are open.
	open() int
	// stop is for a rail that closes, with no endpoint open. False: something is still under way, and rest is called when it is over.
	stop(rest func()) bool
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }
func (r *rail) Notes() []string         { return nil }

func (r *rail) Caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 4, PinsMemory: !r.opt.ODP, MaxMR: maxMR(r.attr.MaxMRSize), MaxMsg: r.c.MaxMsg()}
}

// error is that of a call (clib.CallError), with what it was for and the limit that it has met.
func (r *rail) error(phase, err error, what string) error {
	call := clib.As(err)
	return fmt.Errorf("%w: %s/%s: %s%s: %w%s", phase, r.dev.Fabric, r.dev.Name, call.Call, what, call.Errno, limit(call.Errno))
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

func (r *rail) openError(err error) error {
	to := ""
	if errors.Is(err, syscall.ENOSPC) {
		to = fmt.Sprintf(" beyond %d entries, the most that the device has (max_cqe; fewer peers, fewer qps_per_rail, or more devices)", r.attr.MaxCQE)
	}
	return r.error(provider.ErrEndpoint, err, to)
}

// source is the GID of new endpoints, or why there is none.
func (r *rail) source() (gid, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gid, r.noGID
}

// resolve looks the GID up again: the same address wherever it is now, else one of its kind, which peers can reach as they did that.
// changed says what is different, err why there is none any more. Endpoints that are open keep theirs.
func (r *rail) resolve() (changed string, err error) {
	e := r.entry
	if e.cm != nil { // iWARP has an IP address for good
		return "", nil
	}
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

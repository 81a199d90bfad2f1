package libfabric

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options are what an endpoint of libfabric's is asked for before it is enabled.
type Options struct {
	// EFA: no CUDA calls and no detour through shared memory behind our back. Others don't know these: no harm.
	NoDetours bool
	// Memory of GPUs is the device's own to move, or nobody's: a provider that copied it by way of the host's would call CUDA from our thread.
	P2P bool
}

// openEP implements fi_endpoint, fi_ep_bind and fi_enable.
func (r *Rail) openEP(i *Info, how Options) (*fiEP, error) {
	ep, rc := openEP(r.c.domain, i.c)
	runtime.KeepAlive(i)
	if rc < 0 {
		return nil, r.lib.check("fi_endpoint", rc)
	}
	if how.NoDetours {
		setOff(ep, optCUDA)
		setOff(ep, optSharedMemory)
	}
	if how.P2P {
		r.noP2P = r.lib.check("FI_OPT_FI_HMEM_P2P", requireP2P(ep))
		// One that has no such option has no such detour either.
		if errors.Is(r.noP2P, syscall.ENOPROTOOPT) || errors.Is(r.noP2P, syscall.ENOSYS) {
			r.noP2P = nil
		}
	}
	if err := r.enable(ep); err != nil {
		closeFid(&ep.fid)
		return nil, err
	}
	return ep, nil
}

// enable implements fi_ep_bind of address vector and queue, and fi_enable.
func (r *Rail) enable(ep *fiEP) error {
	if err := r.lib.check("fi_ep_bind (address vector)", bindAV(ep, r.c.av)); err != nil {
		return err
	}
	if err := r.lib.check("fi_ep_bind (completion queue)", bindCQ(ep, r.c.cq)); err != nil {
		return err
	}
	return r.lib.check("fi_enable", enableEP(ep))
}

// Share opens the endpoint of all peers.
func (r *Rail) Share(how Options) error {
	ep, err := r.openEP(r.info, how)
	if err == nil {
		share(r.c, ep)
	}
	return err
}

// NoP2P is why the provider does not let the device alone move memory of GPUs, where that was asked for; nil: it does.
func (r *Rail) NoP2P() error { return r.noP2P }

// Endpoint is what the core posts to for one peer: an endpoint of libfabric's, or that of all peers.
type Endpoint struct {
	rail *Rail
	c    *coreEP
}

// NewEndpoint is one that is neither open nor connected.
func (r *Rail) NewEndpoint() (*Endpoint, error) {
	e := &Endpoint{rail: r, c: newCoreEP()}
	if e.c == nil {
		return nil, r.lib.Errno("calloc", syscall.ENOMEM)
	}
	return e, nil
}

// Free is for one that is not open.
func (e *Endpoint) Free() { freeCoreEP(e.c) }

// Core is the `ep` of the ops table.
func (e *Endpoint) Core() unsafe.Pointer { return unsafe.Pointer(e.c) }

// Open implements fi_endpoint and fi_enable. Under Hold.
func (e *Endpoint) Open(i *Info, how Options) (err error) {
	e.c.ep, err = e.rail.openEP(i, how)
	return err
}

// Borrow takes the endpoint of all peers. Under Hold.
func (e *Endpoint) Borrow() { e.c.ep = e.rail.c.shared }

// Name implements fi_getname. Under Hold.
func (e *Endpoint) Name() ([]byte, error) {
	addr, rc := getname(e.c.ep)
	return addr, e.rail.lib.check("fi_getname", rc)
}

// Point says where operations go.
func (e *Endpoint) Point(at Place) { point(e.rail.c, e.c, fiAddr(at)) }

// Close implements fi_close of an endpoint that was opened. Under Hold.
func (e *Endpoint) Close() error { return e.rail.lib.check("fi_close", closeFid(&e.c.ep.fid)) }

// ---- its listening socket, where it has one ----

// Filtered says that the listening socket is fd, and has a filter that admits nobody. What the kernel has queued there is reset. Under the Hold
// that the endpoint was opened in: a poll in between would have accepted anybody.
func (e *Endpoint) Filtered(fd int) {
	e.c.listener = cInt(fd)
	turnAway(e.rail.c, fd)
}

// Listener is the descriptor, libfabric's; -1: there is none, or it has no filter.
func (e *Endpoint) Listener() int { return int(e.c.listener) }

// Admit implements SO_ATTACH_FILTER, if there is a listening socket: who the filter takes may connect, until Shut or the peer's first message. 0, or
// the errno.
func (e *Endpoint) Admit(filter []unix.SockFilter) syscall.Errno { return admit(e.rail.c, e.c, filter) }

// Shut admits nobody any more, and tells Unswept.
func (e *Endpoint) Shut() (unswept bool) { return endFilter(e.rail.c, e.c) }

// ShutHeld is Shut under Hold.
func (e *Endpoint) ShutHeld() { shutFilter(e.rail.c, e.c) }

// Unswept says that nobody is admitted any more, and what had been has not been looked at.
func (e *Endpoint) Unswept() bool { return unswept(e.rail.c, e.c) }

// Swept says that it has.
func (e *Endpoint) Swept() { swept(e.rail.c, e.c) }

package libfabric

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"
)

// Options are settings of a libfabric endpoint before fi_enable.
type Options struct {
	// EFA: forbid hidden CUDA calls and copies through shared memory. Other providers refuse these options without
	// harm.
	NoDetours bool
	// Only the device itself may move GPU memory. A provider that copies through host memory would call CUDA from our
	// thread.
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
		// A provider without this option has no copies through host memory.
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

// enable implements fi_ep_bind of address vector and completion queue, and fi_enable.
func (r *Rail) enable(ep *fiEP) error {
	if err := r.lib.check("fi_ep_bind (address vector)", bindAV(ep, r.c.av)); err != nil {
		return err
	}
	if err := r.lib.check("fi_ep_bind (completion queue)", bindCQ(ep, r.c.cq)); err != nil {
		return err
	}
	return r.lib.check("fi_enable", enableEP(ep))
}

// Share opens the shared endpoint.
func (r *Rail) Share(how Options) error {
	ep, err := r.openEP(r.info, how)
	if err == nil {
		share(r.c, ep)
	}
	return err
}

// NoP2P returns why the provider does not guarantee that the device itself moves GPU memory, if that was requested;
// nil: it does.
func (r *Rail) NoP2P() error { return r.noP2P }

// Endpoint is an endpoint of the core for one peer: the rail's shared endpoint.
type Endpoint struct {
	rail *Rail
	c    *coreEP
}

// NewEndpoint returns an endpoint that is neither open nor connected.
func (r *Rail) NewEndpoint() (*Endpoint, error) {
	e := &Endpoint{rail: r, c: newCoreEP()}
	if e.c == nil {
		return nil, r.lib.Errno("calloc", syscall.ENOMEM)
	}
	return e, nil
}

// Free frees an endpoint that is not open.
func (e *Endpoint) Free() { freeCoreEP(e.c) }

// Core returns the `ep` of the ops table.
func (e *Endpoint) Core() unsafe.Pointer { return unsafe.Pointer(e.c) }

// UseShared uses the shared endpoint. Under Hold.
func (e *Endpoint) UseShared() { e.c.ep = e.rail.c.shared }

// Name implements fi_getname. Under Hold.
func (e *Endpoint) Name() ([]byte, error) {
	addr, rc := getname(e.c.ep)
	return addr, e.rail.lib.check("fi_getname", rc)
}

// SetPeer sets the address that operations go to.
func (e *Endpoint) SetPeer(at Place) { setPeer(e.rail.c, e.c, fiAddr(at)) }

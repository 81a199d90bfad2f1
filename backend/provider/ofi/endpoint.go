package ofi

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/sockets"
)

// endpoint implements provider.Endpoint. Where each peer has one it is an endpoint of libfabric's; elsewhere it is an address
// over the rail's one endpoint.
type endpoint struct {
	rail *rail
	addr []byte
	own  sockets.Name // addr, where it listens and has a filter
	core unsafe.Pointer

	mu   sync.Mutex
	c    *coreEP      // nil when closed
	peer []byte       // what Connect was given
	from []netip.Addr // addresses that the peer may connect from, besides the one that Connect is given

	at *peer // its place in the address vector; under rail.setup
}

// OpenEndpoint implements fi_endpoint, fi_ep_bind, fi_enable and fi_getname. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	e := &endpoint{rail: r, c: newCoreEP()}
	if e.c == nil {
		return nil, r.error(provider.ErrEndpoint, r.lib().errno("calloc", syscall.ENOMEM))
	}
	e.core = unsafe.Pointer(e.c)
	var err error
	r.hold(func() { err = e.open() })
	if err != nil {
		freeCoreEP(e.c)
		return nil, r.portsUsed(r.error(provider.ErrEndpoint, err))
	}
	return e, nil
}

// open makes the endpoint, which admits nobody. Under hold.
func (e *endpoint) open() (err error) {
	r, hint := e.rail, -1
	if r.quirks.perPeer {
		hint = r.files.LowestFree() // which a listener may get
		e.c.ep, err = r.makeEP()
	} else {
		e.c.ep = r.c.shared
	}
	if err != nil {
		return err
	}
	if e.addr, err = r.lib().getname(e.c.ep); err != nil {
		if r.quirks.perPeer {
			_ = r.lib().close(&e.c.ep.fid)
		}
		return err
	}
	r.openEPs++
	if r.quirks.perPeer {
		e.fit(hint)
	}
	return nil
}

// makeOf implements fi_endpoint, fi_ep_bind and fi_enable.
func (r *rail) makeOf(info *fiInfo) (*fiEP, error) {
	ep, err := r.lib().openEP(r.c.domain, info)
	if err != nil {
		return nil, err
	}
	if !r.quirks.perPeer {
		// EFA: no CUDA calls and no detour through shared memory behind our back. Others don't know these: no harm.
		setOff(ep, optCUDA)
		setOff(ep, optSharedMemory)
	}
	if r.hmem() {
		// Memory of GPUs is the device's own to move, or nobody's: a provider that copied it by way of the host's would call CUDA from
		// our thread. One that has no such option has no such detour either.
		r.noP2P = r.lib().requireP2P(ep)
		if errors.Is(r.noP2P, syscall.ENOPROTOOPT) || errors.Is(r.noP2P, syscall.ENOSYS) {
			r.noP2P = nil
		}
	}
	if err := r.lib().enable(ep, r.av, r.c.cq); err != nil {
		_ = r.lib().close(&ep.fid)
		return nil, err
	}
	return ep, nil
}

// Addr is libfabric's raw address, a sockaddr for the tcp family.
func (e *endpoint) Addr() []byte { return e.addr }

func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements fi_av_insert. The tcp family connects when the first operation is posted and both sides poll. The
// address is the peer's word: its form is checked against ours. The error wraps provider.ErrBadAddress, and EISCONN where
// there is a peer already.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.rail.dev
	if e.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	if !sameForm(peer, e.addr, e.rail.entry.ip) {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	if err := e.admit(peer); err != nil {
		return err
	}
	e.peer = bytes.Clone(peer)
	var err error
	e.rail.hold(func() {
		if e.at != nil {
			err = e.rail.lib().errno("fi_av_insert", syscall.EISCONN)
		} else if e.at, err = e.rail.join(e.peer); err == nil {
			e.c.peer = e.at.index
		}
	})
	if err != nil {
		return e.rail.error(provider.ErrBadAddress, err)
	}
	return nil
}

var errAddress = errors.New("not an address of this fabric")

// sameForm compares length and, for socket addresses, family, and wants a port and an address to be there.
func sameForm(peer, own []byte, ip bool) bool {
	if len(peer) != len(own) || len(peer) == 0 || len(peer) > maxAddr {
		return false
	}
	if a := sockets.Addr(own); ip && a.IsValid() {
		p := sockets.Addr(peer)
		return p.IsValid() && p.Is4() == a.Is4() && !p.IsUnspecified() && !p.IsMulticast() && (peer[2] != 0 || peer[3] != 0)
	}
	return true
}

// Close implements fi_close and fi_av_remove. What was posted comes out of poll as ECANCELED afterwards, so contexts live
// on until then; their local buffers are no longer touched. On a shared endpoint (Caps.SharedEndpoint) nothing is cancelled:
// drain first. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	var found *search
	if e.rail.quirks.perPeer {
		found = e.rail.connections(e)
	}
	var err error
	e.rail.hold(func() { err = e.close(found) })
	if err != nil {
		return e.rail.error(provider.ErrEndpoint, err)
	}
	freeCoreEP(e.c)
	e.c = nil
	return nil
}

// close ends the endpoint, its connections first. Under hold.
func (e *endpoint) close(found *search) error {
	r := e.rail
	if r.quirks.perPeer {
		shutDoor(r.c, e.c)
		if found != nil {
			found.breakAll(r)
		}
		if err := r.lib().close(&e.c.ep.fid); err != nil {
			return err
		}
	}
	r.leave(e.at)
	r.openEPs--
	if r.listening[e.own] == e {
		delete(r.listening, e.own)
	}
	return nil
}

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
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// endpoint implements provider.Endpoint. If each peer has its own endpoint, it is an endpoint of libfabric. Otherwise
// it is a peer's address on the rail's shared endpoint.
type endpoint struct {
	rail *rail
	addr []byte
	own  sockets.Name // addr, if the endpoint listens with a filter
	core unsafe.Pointer

	mu   sync.Mutex
	c    *libfabric.Endpoint // nil when closed
	peer []byte              // the address given to Connect
	from []netip.Addr        // further addresses from which the peer may connect

	at *peer // entry in the address vector; under rail.setup
}

// OpenEndpoint implements fi_endpoint, fi_ep_bind, fi_enable and fi_getname. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	c, err := r.c.NewEndpoint()
	if err != nil {
		return nil, r.error(provider.ErrEndpoint, err)
	}
	e := &endpoint{rail: r, c: c, core: c.Core()}
	r.hold(func() { err = e.open() })
	if err != nil {
		c.Free()
		return nil, r.ports.explain(r.error(provider.ErrEndpoint, err), r.dev.Addr)
	}
	return e, nil
}

// open opens the endpoint, which admits nobody yet. Under hold.
func (e *endpoint) open() (err error) {
	r, hint := e.rail, -1
	if r.quirks.perPeer {
		hint = r.files.LowestFree() // the listener may get this descriptor
		err = r.ports.open(e.c, r.entry.Info, r.options())
	} else {
		e.c.UseShared()
	}
	if err != nil {
		return err
	}
	if e.addr, err = e.c.Name(); err != nil {
		if r.quirks.perPeer {
			_ = e.c.Close()
		}
		return err
	}
	r.openEPs++
	if r.quirks.perPeer {
		e.attachFilter(hint)
	}
	return nil
}

// Addr returns libfabric's raw address: a sockaddr for the tcp family.
func (e *endpoint) Addr() []byte { return e.addr }

func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements fi_av_insert. The tcp family connects when the first operation is posted and both sides poll. The
// address comes unverified from the peer; only its form is checked against ours. The error wraps
// provider.ErrBadAddress, and EISCONN if the endpoint already has a peer.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.rail.dev
	if e.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	if !sameForm(peer, e.addr, e.rail.entry.IP) {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	if err := e.admit(peer); err != nil {
		return err
	}
	e.peer = bytes.Clone(peer)
	if err := e.setPeer(); err != nil {
		return e.rail.error(provider.ErrBadAddress, err)
	}
	return nil
}

// setPeer enters the peer's address in the address vector. Later operations go to that address.
func (e *endpoint) setPeer() (err error) {
	r := e.rail
	r.setup.Lock()
	defer r.setup.Unlock()
	if e.at != nil {
		return r.lib().Errno("fi_av_insert", syscall.EISCONN)
	}
	if e.at, err = r.peers.join(e.peer); err != nil {
		return err
	}
	e.c.SetPeer(e.at.place)
	return nil
}

var errAddress = errors.New("not an address of this fabric")

// sameForm compares length and, for socket addresses, the family. A socket address must have a port and a unicast
// address.
func sameForm(peer, own []byte, ip bool) bool {
	if len(peer) != len(own) || len(peer) == 0 || len(peer) > libfabric.MaxAddr {
		return false
	}
	if a := sockets.Addr(own); ip && a.IsValid() {
		p := sockets.Addr(peer)
		return p.IsValid() && p.Is4() == a.Is4() && !p.IsUnspecified() && !p.IsMulticast() && (peer[2] != 0 || peer[3] != 0)
	}
	return true
}

// Close implements fi_close and fi_av_remove. Afterwards poll reports posted operations as ECANCELED, so their contexts
// stay valid until then. Their local buffers are no longer touched. On a shared endpoint (Caps.SharedEndpoint) nothing
// is cancelled: drain first. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	var found *search
	if e.rail.quirks.perPeer {
		found = e.connections()
	}
	var err error
	e.rail.hold(func() { err = e.close(found) })
	if err != nil {
		return e.rail.error(provider.ErrEndpoint, err)
	}
	e.c.Free()
	e.c = nil
	return nil
}

// close breaks the endpoint's connections and closes the endpoint. Under hold.
func (e *endpoint) close(found *search) error {
	r := e.rail
	if r.quirks.perPeer {
		e.c.ShutHeld()
		if found != nil {
			found.breakAll(r.c, r.files, r.openEPs)
		}
		if err := e.c.Close(); err != nil {
			return err
		}
	}
	r.peers.leave(e.at)
	r.openEPs--
	if r.listening[e.own] == e.c {
		delete(r.listening, e.own)
	}
	return nil
}

// connections finds the endpoint's sockets. libfabric may close some of them until the rail is held.
func (e *endpoint) connections() *search {
	own, ok := sockets.NameOf(e.addr)
	if !ok {
		return nil
	}
	s := &search{own: own, listener: -1}
	if e.at != nil {
		s.peer, _ = sockets.NameOf(e.at.addr)
	}
	e.rail.scanner.find(e.rail.c, s)
	return s
}

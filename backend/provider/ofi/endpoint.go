package ofi

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// endpoint implements provider.Endpoint: a peer's address on the rail's shared endpoint.
type endpoint struct {
	rail *rail
	addr []byte
	core unsafe.Pointer

	mu   sync.Mutex
	c    *libfabric.Endpoint // nil when closed
	peer []byte              // the address given to Connect

	at *peer // entry in the address vector; under rail.setup
}

// OpenEndpoint implements fi_getname of the shared endpoint. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	c, err := r.c.NewEndpoint()
	if err != nil {
		return nil, r.error(provider.ErrEndpoint, err)
	}
	e := &endpoint{rail: r, c: c, core: c.Core()}
	r.hold(func() { err = e.open() })
	if err != nil {
		c.Free()
		return nil, r.error(provider.ErrEndpoint, err)
	}
	return e, nil
}

// Addr returns libfabric's raw address.
func (e *endpoint) Addr() []byte { return e.addr }

func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements fi_av_insert. The address comes unverified from the peer; only its form is checked against ours. The error wraps
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
	e.peer = bytes.Clone(peer)
	if err := e.setPeer(); err != nil {
		return e.rail.error(provider.ErrBadAddress, err)
	}
	return nil
}

// Close implements fi_av_remove. Nothing is cancelled on the shared endpoint (Caps.SharedEndpoint): drain first. A second Close does
// nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	e.rail.hold(func() {
		e.rail.peers.leave(e.at)
		e.rail.openEPs--
	})
	e.c.Free()
	e.c = nil
	return nil
}

// open gives the peer the shared endpoint. Under hold.
func (e *endpoint) open() (err error) {
	e.c.UseShared()
	if e.addr, err = e.c.Name(); err == nil {
		e.rail.openEPs++
	}
	return err
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
	if a := libfabric.Addr(own); ip && a.IsValid() {
		p := libfabric.Addr(peer)
		return p.IsValid() && p.Is4() == a.Is4() && !p.IsUnspecified() && !p.IsMulticast() && (peer[2] != 0 || peer[3] != 0)
	}
	return true
}

// peers holds the addresses in a rail's address vector. Some providers count insertions of an address, EFA does not. So
// the count is kept here, and each address is inserted once.
type peers struct {
	c      *libfabric.Rail
	byAddr map[string]*peer
}

type peer struct {
	addr  []byte
	place libfabric.Place
	users int
}

// join returns the entry of an address and adds a user. Under rail.setup.
func (p *peers) join(addr []byte) (*peer, error) {
	at := p.byAddr[string(addr)]
	if at == nil {
		place, err := p.c.Insert(addr)
		if err != nil {
			return nil, err
		}
		at = &peer{addr: addr, place: place}
		p.byAddr[string(addr)] = at
	}
	at.users++
	return at, nil
}

// leave undoes join; nil is ignored. Under hold.
func (p *peers) leave(at *peer) {
	if at == nil {
		return
	}
	if at.users--; at.users == 0 {
		delete(p.byAddr, string(at.addr))
		p.c.Remove(at.place)
	}
}

package verbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"gorail/backend/provider"
)

// endpoint implements provider.Endpoint: a queue pair.
type endpoint struct {
	addr     address
	gidIndex int // source of the route; -1: no GRH, within the subnet
	core     unsafe.Pointer

	mu        sync.Mutex // guards the methods of qp, and connected
	qp        *queuePair
	connected bool
}

// OpenEndpoint implements ibv_create_qp and the transition to INIT. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	g, err := r.source()
	if err != nil {
		return nil, fmt.Errorf("%w: %s/%s: %w", provider.ErrEndpoint, r.dev.Fabric, r.dev.Name, err)
	}
	qp, err := r.openQP()
	if err != nil {
		return nil, r.openError(err)
	}
	e := &endpoint{qp: qp, gidIndex: r.ibGID, core: qp.c.Core(), addr: address{QPN: qp.num, PSN: qp.psn, LID: qp.lid, MTU: uint16(qp.mtu),
		Ethernet: r.ethernet, Reads: r.readsIn(), GID: g.addr.As16()}}
	if r.ethernet {
		e.gidIndex = g.index
	}
	return e, nil
}

func (e *endpoint) Addr() []byte         { return e.addr.encode() }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements the transitions to RTR and RTS. On RoCE the kernel resolves the route to the peer's address, which
// may take a second. No lock of the rail is held meanwhile. The address comes unverified from the peer. The error wraps
// provider.ErrBadAddress.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, d := e.qp.rail, e.qp.rail.dev
	if e.qp.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	a, ok := decodeAddress(peer)
	if !ok || a.Ethernet != e.addr.Ethernet {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	err := error(errConnected)
	if !e.connected {
		err = e.qp.connect(a, e.addr.GID, e.gidIndex)
	}
	if err != nil {
		return r.error(provider.ErrBadAddress, err, " to "+a.port())
	}
	e.connected = true
	return nil
}

// Close implements ibv_modify_qp to ERR and ibv_destroy_qp. The peer's access ends. poll reports posted operations as
// ECANCELED unless they had completed before. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.qp.c == nil {
		return nil
	}
	if err := e.qp.close(); err != nil {
		return e.qp.rail.error(provider.ErrEndpoint, err, "")
	}
	return nil
}

var errAddress = errors.New("not an address of an InfiniBand or RoCE endpoint")

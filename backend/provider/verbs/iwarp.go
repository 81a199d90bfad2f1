package verbs

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/rdmacm"
)

// iwState is the state of an endpoint's connection.
//
//	idle -> dialing -> up     we request the connection: our address is the greater one
//	idle -> waiting -> up     the peer requests it
//	any  -> failed | closed
type iwState int

const (
	iwIdle iwState = iota
	iwDialing
	iwWaiting
	iwUp
	iwFailed
	iwClosed
)

// iwEndpoint implements provider.Endpoint: a queue pair connected by rdma_cm.
type iwEndpoint struct {
	m    *connector
	addr iwAddress
	core unsafe.Pointer

	// Guarded by m.mu.
	qp         *queuePair
	peer       iwAddress
	state      iwState
	id         rdmacm.ID // id of the connection, or nil
	request    rdmacm.ID // a peer's request that arrived before Connect, or nil
	reads      uint8     // READs that the requester answers at a time
	connecting bool      // rdma_connect is running, without mu
	timer      *time.Timer
}

var errIWAddress = errors.New("not an address of an iWARP endpoint")

// openEndpoint implements ibv_create_qp and the transition to INIT.
func (m *connector) openEndpoint() (provider.Endpoint, error) {
	r := m.rail
	qp, err := r.openQP()
	if err != nil {
		return nil, r.openError(err)
	}
	var cookie [8]byte
	_, _ = rand.Read(cookie[:]) // never fails
	e := &iwEndpoint{m: m, qp: qp, core: qp.c.Core(), addr: iwAddress{IP: r.entry.gid.addr, Port: m.cm.Port(),
		Cookie: binary.BigEndian.Uint64(cookie[:]), Reads: r.readsIn()}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byCookie[e.addr.Cookie] = e
	return e, nil
}

func (e *iwEndpoint) Addr() []byte         { return e.addr.encode() }
func (e *iwEndpoint) Core() unsafe.Pointer { return e.core }

// Connect calls rdma_resolve_addr on the side that requests the connection. The remaining steps run
// asynchronously. If one fails, or after connectTime, all posted operations fail. Posts return EAGAIN until the
// connection is established. The error wraps provider.ErrBadAddress, or ErrEndpoint on a closed endpoint.
func (e *iwEndpoint) Connect(peer []byte) error {
	m := e.m
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.rail.dev
	if e.state == iwClosed {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	a, ok := decodeIWAddress(peer)
	first := bytes.Compare(e.Addr(), peer)
	if !ok || first == 0 || a.IP.Is4() != e.addr.IP.Is4() {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errIWAddress)
	}
	if e.state != iwIdle {
		return fmt.Errorf("%w: %s/%s: %w", provider.ErrBadAddress, d.Fabric, d.Name, syscall.EISCONN)
	}
	e.peer = a
	if err := e.begin(a, first < 0); err != nil {
		e.state = iwFailed
		return m.rail.error(provider.ErrBadAddress, err, " to "+a.IP.String())
	}
	e.timer = time.AfterFunc(m.within, func() { m.timedOut(e) })
	if first > 0 {
		e.state = iwDialing
		m.byID[e.id] = e
		return nil
	}
	e.state = iwWaiting
	if id := e.request; id != nil {
		e.request = nil
		m.accept(e, id, e.reads)
	}
	return nil
}

// begin prepares to receive the peer's request, or sends one.
func (e *iwEndpoint) begin(peer iwAddress, asked bool) (err error) {
	if err = e.qp.c.Await(asked); err == nil && !asked {
		e.id, err = e.m.cm.Dial(netip.AddrPortFrom(peer.IP, peer.Port), e.m.within)
	}
	return err
}

// connected reports whether both sides may post. The caller holds m.mu.
func (e *iwEndpoint) connected() bool { return e.state == iwUp && e.qp.c.IsConnected() }

// Close implements ibv_modify_qp to ERR, ibv_destroy_qp and rdma_destroy_id, as endpoint.Close does. If rdma_connect is
// still running, Close cannot interrupt it. The goroutine that runs rdma_connect then destroys queue pair and id.
func (e *iwEndpoint) Close() error {
	m := e.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.state == iwClosed {
		return nil
	}
	if e.connecting {
		e.qp.c.Leave()
		m.orphans++
	} else if err := e.qp.close(); err != nil {
		return m.rail.error(provider.ErrEndpoint, err, "")
	}
	e.state = iwClosed
	delete(m.byCookie, e.addr.Cookie)
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.request != nil {
		m.cm.Reject(e.request)
		e.request = nil
	}
	if !e.connecting {
		m.destroyID(e)
	}
	return nil
}

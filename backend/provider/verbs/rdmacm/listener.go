package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"gorail/backend/provider/internal/clib"
)

// backlog is the number of connection requests that may wait for acceptance.
const backlog = 128

// Listener is a listening port, and the event channel of all its connections.
type Listener struct {
	lib  *Library
	ch   *channel // its descriptor is non-blocking
	id   ID
	ip   netip.Addr
	port uint16
}

// Listen listens on the first free port of the range; 0: the system chooses. Implements rdma_create_event_channel,
// rdma_bind_addr and rdma_listen.
func (l *Library) Listen(ip netip.Addr, first, last uint16) (*Listener, error) {
	ch, err := l.c.createEventChannel()
	if err != nil {
		return nil, err
	}
	m := &Listener{lib: l, ch: ch, ip: ip}
	if err := syscall.SetNonblock(fdOf(ch), true); err != nil {
		m.Close()
		return nil, clib.Failed("rdma_create_event_channel", err)
	}
	for port := int(first); ; port++ {
		err := m.listen(uint16(port))
		if err == nil {
			break
		}
		if port >= int(last) || !errors.Is(err, syscall.EADDRINUSE) {
			m.Close()
			return nil, err
		}
	}
	m.port = l.c.srcPort(m.id)
	return m, nil
}

func (m *Listener) listen(port uint16) error {
	id, err := m.lib.bound(m.ch, netip.AddrPortFrom(m.ip, port))
	if err != nil {
		return err
	}
	if err := m.lib.c.listen(id, backlog); err != nil {
		m.lib.c.destroyID(id)
		return err
	}
	m.id = id
	return nil
}

// Port returns the listening port.
func (m *Listener) Port() uint16 { return m.port }

// FD returns the non-blocking descriptor of the event channel. The Listener closes it.
func (m *Listener) FD() int { return fdOf(m.ch) }

// Close closes the listener. All ids of connections must be destroyed before. Implements rdma_destroy_id and
// rdma_destroy_event_channel.
func (m *Listener) Close() {
	if m.id != nil {
		m.lib.c.destroyID(m.id)
	}
	m.lib.c.destroyEventChannel(m.ch)
}

// Dial returns a new id and starts to resolve the address. AddrResolved or Failed follows. Implements
// rdma_resolve_addr.
func (m *Listener) Dial(to netip.AddrPort, within time.Duration) (ID, error) {
	id, err := m.lib.bound(m.ch, netip.AddrPortFrom(m.ip, 0))
	if err != nil {
		return nil, err
	}
	if err := m.lib.c.resolveAddr(id, to, int(within.Milliseconds())); err != nil {
		m.lib.c.destroyID(id)
		return nil, err
	}
	return id, nil
}

// Route implements rdma_resolve_route. RouteResolved or Failed follows.
func (m *Listener) Route(id ID, within time.Duration) error {
	return m.lib.c.resolveRoute(id, int(within.Milliseconds()))
}

// Param holds the connection parameters that two sides negotiate.
type Param struct {
	QPN     uint32 // our queue pair's number
	In, Out uint8  // READs of the peer that we answer at a time, and READs of ours in flight
}

// Connect requests the connection from the peer, sends data to it, and moves the queue pair to RTS. Implements
// rdma_connect. On siw the call blocks until TCP has connected or given up. Other calls may run meanwhile.
func (m *Listener) Connect(id ID, p Param, data []byte) error { return m.lib.c.connect(id, p, data) }

// Accept implements rdma_accept for a Request's id. The call moves the queue pair to RTS.
func (m *Listener) Accept(id ID, p Param) error { return m.lib.c.accept(id, p) }

// Reject implements rdma_reject and destroys the Request's id.
func (m *Listener) Reject(id ID) {
	m.lib.c.reject(id)
	m.lib.c.destroyID(id)
}

// Destroy implements rdma_destroy_id.
func (m *Listener) Destroy(id ID) { m.lib.c.destroyID(id) }

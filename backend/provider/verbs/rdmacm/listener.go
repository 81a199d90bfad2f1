package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"gorail/backend/provider/internal/clib"
)

// backlog is how many connections may wait to be taken in.
const backlog = 128

// Listener is a port that takes connections, and the event channel of those that come and go.
type Listener struct {
	lib  *Library
	ch   *channel // its descriptor does not block
	id   ID
	ip   netip.Addr
	port uint16
}

// Listen listens on the first port of the range that is free; 0: the system chooses. Implements rdma_create_event_channel, rdma_bind_addr
// and rdma_listen.
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

// Port is what it listens on.
func (m *Listener) Port() uint16 { return m.port }

// FD is the descriptor of its events, which does not block; the Listener's to close.
func (m *Listener) FD() int { return fdOf(m.ch) }

// Close is for when there are no ids of connections any more. Implements rdma_destroy_id and rdma_destroy_event_channel.
func (m *Listener) Close() {
	if m.id != nil {
		m.lib.c.destroyID(m.id)
	}
	m.lib.c.destroyEventChannel(m.ch)
}

// Dial gives a new id that looks for the way to an address. AddrResolved or Failed tells. Implements rdma_resolve_addr.
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

// Route implements rdma_resolve_route. RouteResolved or Failed tells.
func (m *Listener) Route(id ID, within time.Duration) error {
	return m.lib.c.resolveRoute(id, int(within.Milliseconds()))
}

// Param is what two sides agree upon.
type Param struct {
	QPN     uint32 // our queue pair
	In, Out uint8  // READs of the peer's that we answer at a time, and of ours that are under way
}

// Connect asks the peer, whom data goes to, and takes the queue pair to RTS. Implements rdma_connect, which siw comes back from when TCP
// has connected or given up. Other calls may be made meanwhile.
func (m *Listener) Connect(id ID, p Param, data []byte) error { return m.lib.c.connect(id, p, data) }

// Accept implements rdma_accept, for a Request's id. It takes the queue pair to RTS.
func (m *Listener) Accept(id ID, p Param) error { return m.lib.c.accept(id, p) }

// Reject implements rdma_reject, and destroys the Request's id.
func (m *Listener) Reject(id ID) {
	m.lib.c.reject(id)
	m.lib.c.destroyID(id)
}

// Destroy implements rdma_destroy_id.
func (m *Listener) Destroy(id ID) { m.lib.c.destroyID(id) }

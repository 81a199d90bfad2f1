package peer

import (
	"net"
	"net/netip"

	"gorail/backend/host"
)

// streamConn is one connection of a stream. The stream may outlive it.
type streamConn struct {
	net.Conn
	addr  netip.AddrPort // the address that the initiator dialed; unset at the target
	first []byte         // bytes to write before all others
	down  chan struct{}  // closed when the stream has given up the connection

	unanswered host.Unanswered // Out.Overdue has it
}

// newStreamConn wraps a connection for a stream. addr is the address that the initiator dialed, unset at the target. The
// stream writes first before all else.
func newStreamConn(c net.Conn, addr netip.AddrPort, first []byte) *streamConn {
	return &streamConn{Conn: c, addr: addr, first: first, down: make(chan struct{})}
}

// leavesFrom reports whether the connection leaves from a local address. The zero address matches any connection.
func (c *streamConn) leavesFrom(local netip.Addr) bool {
	return !local.IsValid() || localAddr(c.Conn) == withoutZone(local)
}

// localAddr returns the local address of a connection.
func localAddr(c net.Conn) netip.Addr {
	if t, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return withoutZone(t.AddrPort().Addr())
	}
	return netip.Addr{}
}

// remoteAddr returns the remote address of a connection.
func remoteAddr(c net.Conn) netip.Addr {
	if t, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return withoutZone(t.AddrPort().Addr())
	}
	return netip.Addr{}
}

func withoutZone(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

package peer

import (
	"net"
	"net/netip"
)

// StreamConn is one connection of a stream. The stream may outlive it.
type StreamConn struct {
	net.Conn
	addr  netip.AddrPort // the address that the initiator dialed; unset at the target
	first []byte         // bytes to write before all others
	down  chan struct{}  // closed when the stream has given up the connection
}

// NewStreamConn wraps a connection for a stream. addr is the address that the initiator dialed, unset at the target. The
// stream writes first before all else.
func NewStreamConn(c net.Conn, addr netip.AddrPort, first []byte) *StreamConn {
	return &StreamConn{Conn: c, addr: addr, first: first, down: make(chan struct{})}
}

// leavesFrom reports whether the connection leaves from a local address. The zero address matches any connection.
func (c *StreamConn) leavesFrom(local netip.Addr) bool {
	return !local.IsValid() || LocalAddr(c.Conn) == withoutZone(local)
}

// LocalAddr returns the local address of a connection.
func LocalAddr(c net.Conn) netip.Addr {
	if t, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return withoutZone(t.AddrPort().Addr())
	}
	return netip.Addr{}
}

func withoutZone(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

package stream

import (
	"net"
	"net/netip"
)

// Conn is one connection of a stream. The stream may outlive it.
type Conn struct {
	net.Conn
	addr  netip.AddrPort // the address that the initiator dialed; unset at the target
	first []byte         // bytes to write before all others
	down  chan struct{}  // closed when the stream has given up the connection
}

// NewConn wraps a connection for a stream. addr is the address that the initiator dialed, unset at the target. The
// stream writes first before all else.
func NewConn(c net.Conn, addr netip.AddrPort, first []byte) *Conn {
	return &Conn{Conn: c, addr: addr, first: first, down: make(chan struct{})}
}

// leavesFrom reports whether the connection leaves from a local address. The zero address matches any connection.
func (c *Conn) leavesFrom(local netip.Addr) bool {
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

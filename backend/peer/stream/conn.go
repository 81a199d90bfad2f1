package stream

import (
	"net"
	"net/netip"
)

// Conn is one connection of a stream. The stream survives it.
type Conn struct {
	net.Conn
	addr  netip.AddrPort // where the initiator dialed; not set at the target
	first []byte         // is written before all else
	down  chan struct{}  // closed when the stream has given the connection up
}

// NewConn makes a connection one of a stream. addr is where the initiator dialed, not set at the target; first is written before all else.
func NewConn(c net.Conn, addr netip.AddrPort, first []byte) *Conn {
	return &Conn{Conn: c, addr: addr, first: first, down: make(chan struct{})}
}

// over says that the connection leaves from a local address; the zero one means any.
func (c *Conn) over(local netip.Addr) bool {
	return !local.IsValid() || LocalAddr(c.Conn) == bare(local)
}

// LocalAddr is the address that a connection leaves from.
func LocalAddr(c net.Conn) netip.Addr {
	if t, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return bare(t.AddrPort().Addr())
	}
	return netip.Addr{}
}

func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

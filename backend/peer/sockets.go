package peer

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/host"
)

// dialTCP connects to an address. It connects to a loopback address from a loopback address.
func dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if err := failpoint.Fail("peer_dial"); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	d := net.Dialer{KeepAlive: -1}
	if ip := to.Addr(); ip.IsLoopback() {
		local := netip.IPv6Loopback()
		if ip.Is4() {
			local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	return d.DialContext(ctx, "tcp", to.String()) // TCP_NODELAY is Go's default
}

// freeBind allows a socket to bind to an address that the host does not have yet. Implements IP_FREEBIND,
// IPV6_FREEBIND.
func freeBind(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if strings.HasSuffix(network, "6") {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	return set
}

// heldConn is a connection that children of fork close.
type heldConn struct {
	*net.TCPConn
	release func()
}

// Read implements net.Conn.
func (c *heldConn) Read(b []byte) (int, error) {
	if err := failpoint.Fail("peer_read"); err != nil {
		return 0, err
	}
	return c.TCPConn.Read(b)
}

// Write implements net.Conn.
func (c *heldConn) Write(b []byte) (int, error) {
	if err := failpoint.Fail("peer_send"); err != nil {
		return 0, err
	}
	return host.Send(c.TCPConn, b)
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.release()
	return c.TCPConn.Close()
}

// held makes a TCP connection one that children of fork close. Other connections, as in tests, are returned
// unchanged.
func held(d host.ForkCloser, c net.Conn) net.Conn {
	if t, ok := c.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { host.RepeatSoon(int(fd)) })
		}
		return &heldConn{t, host.CloseSocketInForks(d, t)}
	}
	return c
}

// heldListener is a listener that children of fork close.
type heldListener struct {
	*net.TCPListener
	release func()
}

// Accept implements net.Listener. A failure leaves the connection in the backlog.
func (l *heldListener) Accept() (net.Conn, error) {
	if err := failpoint.Fail("peer_accept"); err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: err}
	}
	return l.TCPListener.Accept()
}

// Close implements net.Listener.
func (l *heldListener) Close() error {
	l.release()
	return l.TCPListener.Close()
}

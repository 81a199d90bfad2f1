package handshake

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/trust"
)

const (
	answerTime  = 5 * time.Second // for the target's answer: it may starve for processor time
	firstPause  = 5 * time.Millisecond
	longestWait = 200 * time.Millisecond
)

// Dialer makes connections. It is safe for concurrent use.
type Dialer struct{ turns turns }

// Dial makes a connection from a local address, asked for with each try, and proves both ends. It tries again until ctx ends: a target refuses
// while its endpoint is not there yet, and drops an opening that came too slowly. What this process or host lacks ends it at once.
func (d *Dialer) Dial(ctx context.Context, how Sockets, source func() netip.Addr, to Address, s *trust.LinkSecret) (*Connection, error) {
	var last error
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		from := source()
		leave, err := d.turns.take(ctx, route{from, to.At})
		if err != nil {
			return nil, cmp.Or(last, err)
		}
		c, err := dialOnce(ctx, how, from, to, s)
		leave()
		if err == nil {
			return c, nil
		}
		if host.Exhausted(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
		last = err
	}
}

// dialOnce connects once and proves both ends. Implements socket, bind, connect.
func dialOnce(ctx context.Context, how Sockets, from netip.Addr, to Address, s *trust.LinkSecret) (*Connection, error) {
	with := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Control: how.beforeConnect}
	if from.Is4() != to.At.Addr().Is4() {
		with.LocalAddr = nil
	}
	conn, err := with.DialContext(ctx, "tcp", to.At.String())
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	proved, err := prove(ctx, c, to, s)
	if err != nil {
		reset(c)
	}
	return proved, err
}

// prove sends the opening and checks the answer.
func prove(ctx context.Context, c *net.TCPConn, to Address, s *trust.LinkSecret) (*Connection, error) {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	opening := NewOpening(to.Ticket, s, to.Encrypted)
	if _, err := host.Send(c, opening); err != nil {
		return nil, err
	}
	text := make([]byte, AnswerLen)
	if _, err := io.ReadFull(c, text); err != nil {
		return nil, err
	}
	if err := CheckAnswer(opening, text, s); err != nil {
		return nil, err
	}
	return connection(c, opening, text), nil
}

// beforeConnect lets many connections share a local port: the kernel chooses it when it knows the peer.
func (o Sockets) beforeConnect(network, address string, c syscall.RawConn) error {
	if err := c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // Linux 4.2
	}); err != nil {
		return err
	}
	return o.early(network, address, c)
}

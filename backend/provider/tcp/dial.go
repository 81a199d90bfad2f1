package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/trust"
)

const (
	answerTime  = 5 * time.Second // for the target's answer: it may starve for processor time
	firstPause  = 5 * time.Millisecond
	longestWait = 200 * time.Millisecond
)

// dial makes the connection, again and again for connect_timeout. A target refuses while its endpoint is not there yet, and
// drops an opening that came too slowly.
func (e *endpoint) dial(ctx context.Context, to endpointAddr) {
	ctx, cancel := context.WithTimeout(ctx, e.rail.opt.ConnectTimeout)
	defer cancel()
	pause := firstPause
	for {
		c, err := e.open(ctx, to)
		if err == nil {
			e.attach(c)
			return
		}
		select {
		case <-ctx.Done():
			e.broken(err)
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestWait)
	}
}

// open connects once and proves both ends. Implements socket, bind, connect.
func (e *endpoint) open(ctx context.Context, to endpointAddr) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(e.rail.addr, 0)), Control: bindLater}
	if e.rail.addr.Is4() != to.at.Addr().Is4() {
		d.LocalAddr = nil
	}
	conn, err := d.DialContext(ctx, "tcp", to.at.String())
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	if err := e.introduce(ctx, c, to); err != nil {
		reset(c)
		return nil, err
	}
	return c, nil
}

// introduce sends the opening and checks the answer.
func (e *endpoint) introduce(ctx context.Context, c *net.TCPConn, to endpointAddr) error {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var opening []byte
	if err := e.prove(func(s *trust.LinkSecret) error { opening = newOpening(to.ticket, s); return nil }); err != nil {
		return err
	}
	if _, err := c.Write(opening); err != nil {
		return err
	}
	text := make([]byte, answerLen)
	if _, err := io.ReadFull(c, text); err != nil {
		return err
	}
	return e.prove(func(s *trust.LinkSecret) error { return checkAnswer(opening, text, s) })
}

// bindLater lets many connections share a local port: the kernel chooses it when it knows the peer.
func bindLater(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // Linux 4.2
	})
}

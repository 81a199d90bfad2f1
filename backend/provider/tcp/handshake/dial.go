package handshake

import (
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/rlimit"
	"gorail/backend/trust"
)

const (
	answerTime  = 5 * time.Second // for the target's answer: it may starve for processor time
	firstPause  = 5 * time.Millisecond
	longestWait = 200 * time.Millisecond
)

// Dial makes a connection from a local address and proves both ends. It tries again until ctx ends: a target refuses while its
// endpoint is not there yet, and drops an opening that came too slowly. What this process or host lacks ends it at once.
func Dial(ctx context.Context, from netip.Addr, to Address, s *trust.LinkSecret) (*Connection, error) {
	pause := firstPause
	for {
		c, err := dialOnce(ctx, from, to, s)
		if err == nil {
			return c, nil
		}
		if rlimit.Exhausted(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
		pause = min(2*pause, longestWait)
	}
}

// dialOnce connects once and proves both ends. Implements socket, bind, connect.
func dialOnce(ctx context.Context, from netip.Addr, to Address, s *trust.LinkSecret) (*Connection, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Control: bindLater}
	if from.Is4() != to.At.Addr().Is4() {
		d.LocalAddr = nil
	}
	conn, err := d.DialContext(ctx, "tcp", to.At.String())
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
	if _, err := c.Write(opening); err != nil {
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

// bindLater lets many connections share a local port: the kernel chooses it when it knows the peer.
func bindLater(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // Linux 4.2
	})
}

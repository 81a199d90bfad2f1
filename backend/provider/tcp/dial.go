package tcp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
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
	requestWait = 250 * time.Millisecond // before a connection is asked for again: the control channel has just found the path, or another way does the work
)

// dialer makes connections. It is safe for concurrent use.
type dialer struct{ turns dialTurns }

// Dial makes a connection from a local address, asked for with each try, and proves both ends. It tries again until ctx ends: a target refuses
// while its endpoint is not there yet, and drops an opening that came too slowly. What this process or host lacks ends it at once.
func (d *dialer) Dial(ctx context.Context, how sockets, source func() netip.Addr, to address, s *trust.LinkSecret) (*connection, error) {
	var last error
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		from := source()
		leave, err := d.turns.take(ctx, dialRoute{from, to.At})
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
func dialOnce(ctx context.Context, how sockets, from netip.Addr, to address, s *trust.LinkSecret) (*connection, error) {
	with := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Control: how.beforeConnect}
	if from.Is4() != to.At.Addr().Is4() {
		with.LocalAddr = nil
	}
	begun := time.Now()
	conn, err := host.Connect(ctx, func() time.Duration { return host.RequestPause(time.Since(begun), requestWait/4) },
		func(ctx context.Context) (net.Conn, error) { return with.DialContext(ctx, "tcp", to.At.String()) })
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	proved, err := proveTarget(ctx, c, to, s)
	if err != nil {
		resetConn(c)
	}
	return proved, err
}

// proveTarget sends the opening and checks the answer.
func proveTarget(ctx context.Context, c *net.TCPConn, to address, s *trust.LinkSecret) (*connection, error) {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	opening := newOpening(to.Ticket, s, to.Encrypted)
	if _, err := host.Send(c, opening); err != nil {
		return nil, err
	}
	text := make([]byte, answerLen)
	if err := readAnswer(ctx, c, text, answerTime); err != nil {
		return nil, err
	}
	if err := checkAnswer(opening, text, s); err != nil {
		return nil, err
	}
	return newConnection(c, opening, text), nil
}

// readAnswer reads the target's answer. If it is late, and the target's kernel has acknowledged the opening, its process starves for processor time: to give the
// connection up would only spend its ticket. Of 8,000 links of 64 agents that all met on two cores, 730 had to be fenced for that.
func readAnswer(ctx context.Context, c *net.TCPConn, text []byte, more time.Duration) error {
	for n := 0; ; {
		m, err := io.ReadFull(c, text[n:])
		n += m
		if !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if info, ok := host.TCPInfo(c); !ok || info.Unacked > 0 {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(more))
		if ctx.Err() != nil { // it has ended before
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// beforeConnect lets many connections share a local port: the kernel chooses it when it knows the peer.
func (o sockets) beforeConnect(network, address string, c syscall.RawConn) error {
	if err := c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // Linux 4.2
	}); err != nil {
		return err
	}
	return o.early(network, address, c)
}

// turnsOfRoute is how many openings a process has at one target from one address at a time: sixteen processes of a host do not take each other's places
// at the target.
const turnsOfRoute = 4

// dialTurns are the openings of a process, by route: a path on which nothing is answered holds up no other path to the target.
type dialTurns struct {
	mu sync.Mutex
	of map[dialRoute]*dialTurn
}

type dialRoute struct {
	from netip.Addr
	to   netip.AddrPort
}

type dialTurn struct {
	places chan struct{}
	users  int // that hold a place, or wait for one
}

// take waits for a place on the route. The caller calls leave once. It fails if ctx ends first.
func (t *dialTurns) take(ctx context.Context, on dialRoute) (leave func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[dialRoute]*dialTurn{}
	}
	at := t.of[on]
	if at == nil {
		at = &dialTurn{places: make(chan struct{}, turnsOfRoute)}
		t.of[on] = at
	}
	at.users++
	t.mu.Unlock()
	select {
	case at.places <- struct{}{}:
		return func() { <-at.places; t.done(on, at) }, nil
	case <-ctx.Done():
		t.done(on, at)
		return nil, ctx.Err()
	}
}

func (t *dialTurns) done(on dialRoute, at *dialTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(t.of, on)
	}
}

package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTurns: a place at a target is for one opening. Who waits for one gives up with its context. Another target is free, and the
// same target from another address.
func TestTurns(t *testing.T) {
	t.Parallel()
	var all dialTurns
	from, target := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddrPort("192.0.2.1:7")
	to := dialRoute{from, target}
	others := []dialRoute{{from, netip.MustParseAddrPort("192.0.2.1:8")}, {netip.MustParseAddr("198.51.100.2"), target}}
	var leave []func()
	for range turnsOfRoute {
		l, err := all.take(context.Background(), to)
		require.NoError(t, err)
		leave = append(leave, l)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := all.take(ended, to)
	require.ErrorIs(t, err, context.Canceled)
	for _, other := range others {
		l, err := all.take(context.Background(), other)
		require.NoError(t, err)
		l()
	}
	leave[0]()
	leave[0], err = all.take(context.Background(), to)
	require.NoError(t, err)
	for _, l := range leave {
		l()
	}
	require.Empty(t, all.of)
}

// TestDialTurns: a process has few openings at a target at a time. One that ends makes room for the next.
func TestDialTurns(t *testing.T) {
	t.Parallel()
	const links = 5 * turnsOfRoute
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	require.NoError(t, err)
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var d dialer
	var dials sync.WaitGroup
	for i := range byte(links) {
		w := newLoneWaiter(i)
		dials.Go(func() {
			c, err := d.Dial(ctx, sockets{}, fixed(loopback), address{At: to, Ticket: w.ticket}, linkOf(w.ticket))
			if err != nil {
				t.Errorf("link %d: %v", i, err)
				return
			}
			_ = c.Close()
		})
	}
	held := make(chan *net.TCPConn, links)
	for n := range links {
		if n >= turnsOfRoute { // none comes by itself
			_ = l.SetDeadline(time.Now().Add(5 * time.Millisecond))
			_, err := l.AcceptTCP()
			require.Error(t, err, "%d openings at once", n)
			let(t, <-held)
		}
		_ = l.SetDeadline(time.Now().Add(time.Minute))
		c, err := l.AcceptTCP()
		require.NoError(t, err)
		held <- c
	}
	for len(held) > 0 {
		let(t, <-held)
	}
	dials.Wait()
}

// let answers an opening.
func let(t *testing.T, c *net.TCPConn) {
	t.Helper()
	opening := make([]byte, openingLen)
	_, err := io.ReadFull(c, opening)
	require.NoError(t, err)
	ticket, err := openingTicket(opening)
	require.NoError(t, err)
	text, err := answerOpening(opening, linkOf(ticket))
	require.NoError(t, err)
	_, err = c.Write(text)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

package tcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/peer"
	"gorail/backend/trust"
	"gorail/test/tcpmodel"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// loneWaiter waits for one connection.
type loneWaiter struct {
	waiter
	got   chan *net.TCPConn
	ended chan error // by broken
}

func newLoneWaiter(number byte) *loneWaiter {
	w := &loneWaiter{got: make(chan *net.TCPConn, 1), ended: make(chan error, 1)}
	w.waiter = waiter{ticket: trust.Ticket{1, number}, attach: func(c *connection) { w.got <- c.TCPConn }, broken: func(err error) { w.ended <- err }}
	w.secret = func() *trust.LinkSecret { return linkOf(w.ticket) }
	return w
}

func (w *loneWaiter) opening() []byte { return newOpening(w.ticket, linkOf(w.ticket), false) }

func newListener(t *testing.T) *listener {
	t.Helper()
	l, err := sockets{}.Listen(loopback, 0, 0)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// dialListener connects to a listener from an address of this host.
func dialListener(t *testing.T, l *listener, from string) *net.TCPConn {
	t.Helper()
	c, err := dialListenerFrom(l, from)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dialListenerFrom(l *listener, from string) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// reach lets an honest peer in, and moves a byte each way.
func reach(t *testing.T, l *listener, w *loneWaiter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := new(dialer).Dial(ctx, sockets{}, fixed(loopback), address{At: l.Addr(), Ticket: w.ticket}, linkOf(w.ticket))
	require.NoError(t, err)
	in := <-w.got
	defer out.Close()
	defer in.Close()
	for _, c := range [][2]*net.TCPConn{{in, out.TCPConn}, {out.TCPConn, in}} {
		_, err := c[0].Write([]byte("x"))
		require.NoError(t, err)
		_ = c[1].SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = io.ReadFull(c[1], make([]byte, 1))
		require.NoError(t, err)
	}
}

// TestSilentConnections: connections that send nothing, or a part of an opening, have 64 places, and none more than a second. They get no byte.
// More of them end the oldest. An honest peer gets in meanwhile, from an address of theirs, too.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	l := newListener(t)
	var held []*net.TCPConn
	for n := range 3 * mostOpenings {
		c, err := dialListenerFrom(l, fmt.Sprintf("127.0.0.%d", 1+n%5))
		require.NoError(t, err)
		if n%2 == 0 {
			_, _ = c.Write(newLoneWaiter(1).opening()[:1+n%(openingLen-1)])
		}
		held = append(held, c)
	}
	for n := range byte(3) {
		w := newLoneWaiter(n)
		l.Expect(&w.waiter)
		reach(t, l, w)
	}
	for _, c := range held {
		silent(t, c)
	}
	require.Zero(t, l.Waiting())
	require.True(t, soon(func() bool { return l.idle() }))
}

// idle reports that the listener has no connection.
func (s *listener) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.places.held)+len(s.places.sources)+len(s.pending)+len(s.looked) == 0
}

// TestUnknownTicketsTakeNoPlace: whole openings that nobody waits for, and what is no opening, are reset at once, whatever their number.
func TestUnknownTicketsTakeNoPlace(t *testing.T) {
	t.Parallel()
	l := newListener(t)
	for n := range 4 * mostOpenings {
		text := newLoneWaiter(1).opening()
		if n%2 == 0 {
			text = []byte("GET")
		}
		c := dialListener(t, l, "127.0.0.1")
		_, err := c.Write(text)
		require.NoError(t, err)
		silent(t, c)
	}
	require.Zero(t, l.Limited())
}

// TestPlaces: a connection more than there are places ends the oldest of the source that has the most. Addresses of one IPv6 /64 are one source.
func TestPlaces(t *testing.T) {
	at := func(a string) *openingPlace {
		return &openingPlace{source: peer.SourceOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 1)))}
	}
	p := openingPlaces{sources: map[netip.Addr]int{}}
	honest := at("2001:db8:0:1::1")
	require.Empty(t, p.enter(honest, mostOpenings))
	other := []*openingPlace{at("192.0.2.1"), at("::ffff:192.0.2.1")}
	for _, o := range other {
		require.Empty(t, p.enter(o, mostOpenings))
	}
	var flood []*openingPlace
	for n := range 1000 {
		f := at(fmt.Sprintf("2001:db8::%x", n))
		flood = append(flood, f)
		evicted := p.enter(f, mostOpenings)
		if n < mostOpenings-3 {
			require.Empty(t, evicted)
			continue
		}
		require.Equal(t, []*openingPlace{flood[n-(mostOpenings-3)]}, evicted, "the oldest of the /64")
		require.False(t, p.leave(evicted[0]))
	}
	require.True(t, p.leave(honest))
	require.True(t, p.leave(other[0]))
	require.True(t, p.leave(other[1]))
	require.Len(t, p.held, mostOpenings-3)
	require.Len(t, p.sources, 1)

	p = openingPlaces{sources: map[netip.Addr]int{}} // all sources have one: the oldest of all
	var all []*openingPlace
	for n := range 1000 {
		all = append(all, at(fmt.Sprintf("10.0.%d.%d", n>>8, n&255)))
		if evicted := p.enter(all[n], mostOpenings); n >= mostOpenings {
			require.Equal(t, []*openingPlace{all[n-mostOpenings]}, evicted)
		}
	}
	require.Len(t, p.sources, mostOpenings)
	require.Len(t, p.enter(at("10.1.0.1"), 8), mostOpenings-7, "the process lacks descriptors")
	require.Len(t, p.held, 8)
	require.Same(t, all[1000-7], p.shed())
}

// TestCloseEndsOpenings: Close ends the connections that have places, and returns after the last Attach.
func TestCloseEndsOpenings(t *testing.T) {
	t.Parallel()
	l, err := sockets{}.Listen(loopback, 0, 0)
	require.NoError(t, err)
	var held []*net.TCPConn
	for range 10 {
		c := dialListener(t, l, "127.0.0.1")
		_, err := c.Write(openingMagic[:4])
		require.NoError(t, err)
		held = append(held, c)
	}
	require.True(t, soon(func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.places.held) > 0
	}))
	l.Close()
	require.True(t, l.idle())
	for _, c := range held {
		silent(t, c)
	}
}

// TestTicketOfMany: of the connections that name one ticket, a few are looked at at a time.
func TestTicketOfMany(t *testing.T) {
	t.Parallel()
	l := newListener(t)
	w, ask := newLoneWaiter(1), make(chan struct{})
	w.secret = func() *trust.LinkSecret { // takes long
		<-ask
		return linkOf(w.ticket)
	}
	l.Expect(&w.waiter)
	var all []*net.TCPConn
	for range 2 * mostOfTicket {
		c := dialListener(t, l, "127.0.0.1")
		_, err := c.Write(w.opening())
		require.NoError(t, err)
		all = append(all, c)
	}
	require.True(t, soon(func() bool { return l.Limited() == mostOfTicket }))
	close(ask)
	got := <-w.got
	defer got.Close()
	answers := 0
	for _, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, _ := io.ReadFull(c, make([]byte, answerLen)); n > 0 {
			answers++
		}
	}
	require.Equal(t, 1, answers)
}

// soon waits until a condition holds.
func soon(holds func() bool) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

// TestOpenings: what is no opening of the link gets no byte, and spends no ticket. An opening works once.
func TestOpenings(t *testing.T) {
	t.Parallel()
	l, w := newListener(t), newLoneWaiter(1)
	l.Expect(&w.waiter)
	changed := func(at int) []byte {
		b := w.opening()
		b[at] ^= 1
		return b
	}
	unproved := map[string][]byte{
		"a frame":                tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Seq: 1}, make([]byte, 100), tcpmodel.Segment{}).Encode(),
		"zeros":                  make([]byte, openingLen),
		"HTTP":                   []byte("GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nUser-Agent: something that looks around\r\nAccept: */*\r\n\r\n"),
		"another ticket":         newLoneWaiter(2).opening(),
		"another link's secret":  newOpening(w.ticket, linkOf(trust.Ticket{1}), false),
		"an ended opening":       w.opening()[:openingLen-1],
		"nothing but an end":     {},
		"a changed nonce":        changed(8 + 2 + 6 + 16),
		"a changed proof":        changed(openingBody),
		"the proof's last byte":  changed(openingLen - 1),
		"a changed zero":         changed(10),
		"another version":        changed(8),
		"a changed magic":        changed(0),
		"a changed magic's end":  changed(7),
		"a changed ticket":       changed(16),
		"a good one behind junk": append([]byte{0}, w.opening()...),
	}
	for name, text := range unproved {
		t.Run(name, func(t *testing.T) {
			c := dialListener(t, l, "127.0.0.1")
			_, err := c.Write(text)
			require.NoError(t, err)
			_ = c.CloseWrite() // it may be reset already
			silent(t, c)
		})
	}
	opening := w.opening()
	for try, in := 0, false; !in; try++ { // byte by byte; on a starved host that may take too long
		require.Less(t, try, 10)
		c := dialListener(t, l, "127.0.0.1")
		start := time.Now()
		for _, b := range opening {
			_, _ = c.Write([]byte{b})
		}
		if in = time.Since(start) < openingTime/2; in {
			accepted(t, c, opening, linkOf(w.ticket))
		}
	}
	got := <-w.got
	defer got.Close()
	for name, text := range map[string][]byte{"a spent ticket": w.opening(), "the same opening again": opening} {
		t.Run(name, func(t *testing.T) {
			again := dialListener(t, l, "127.0.0.1")
			_, err := again.Write(text)
			require.NoError(t, err)
			silent(t, again)
		})
	}
}

// TestTicketOfTwo: two connections present one ticket at once. One gets in.
func TestTicketOfTwo(t *testing.T) {
	t.Parallel()
	l := newListener(t)
	in := 0
	for round := range byte(20) {
		w := newLoneWaiter(round)
		l.Expect(&w.waiter)
		got := make(chan int, 2)
		var all [2]*net.TCPConn
		for i := range all {
			all[i] = dialListener(t, l, "127.0.0.1")
		}
		for _, c := range all {
			go func() {
				_, _ = c.Write(w.opening())
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
				k, _ := io.ReadFull(c, make([]byte, answerLen))
				got <- k
			}()
		}
		if sum := <-got + <-got; sum > 0 { // on a starved host both may be late
			require.Equal(t, answerLen, sum, "one of two gets an answer")
			in++
			_ = (<-w.got).Close()
		}
		l.Forget(&w.waiter)
		require.Empty(t, w.got)
		for _, c := range all {
			_ = c.Close()
		}
	}
	require.Positive(t, in)
}

// TestForgotten: nobody gets in to a waiter that is not expected yet, or is forgotten.
func TestForgotten(t *testing.T) {
	t.Parallel()
	l, w := newListener(t), newLoneWaiter(1)
	try := func() {
		c := dialListener(t, l, "127.0.0.1")
		_, err := c.Write(w.opening())
		require.NoError(t, err)
		silent(t, c)
	}
	try()
	l.Expect(&w.waiter)
	l.Forget(&w.waiter)
	try()
	l.Expect(&w.waiter)
	reach(t, l, w)
}

// TestDialLacks: what this host lacks ends a dial at once, with its errno. What a target may have soon does not.
func TestDialLacks(t *testing.T) {
	t.Parallel()
	l, w := newListener(t), newLoneWaiter(1)
	to := address{At: l.Addr(), Ticket: w.ticket}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := new(dialer).Dial(ctx, sockets{}, fixed(netip.MustParseAddr("192.0.2.1")), to, linkOf(w.ticket)) // no address of this host
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	require.NoError(t, ctx.Err(), "at once")
	time.AfterFunc(50*time.Millisecond, func() { l.Expect(&w.waiter) })
	reach(t, l, w)
}

// TestPause: accept's errors are told once, and make it wait.
func TestPause(t *testing.T) {
	t.Parallel()
	l, err := sockets{}.Listen(loopback, 0, 0)
	require.NoError(t, err)
	pause, start := acceptPause, time.Now()
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 200, 200} {
		pause = l.pause(syscall.EPERM, pause)
		require.Equal(t, want*time.Millisecond, pause)
	}
	require.Greater(t, time.Since(start), 400*time.Millisecond)
	require.ErrorIs(t, l.AcceptError(), syscall.EPERM)
	require.NoError(t, l.AcceptError())
	l.pause(syscall.EMFILE, 0)
	require.NoError(t, l.AcceptError(), "nobody waits")
	require.Equal(t, acceptPause, l.pause(syscall.ECONNABORTED, longestPause), "another connection may be fine")
	require.NoError(t, l.AcceptError())
	l.Close()
	start = time.Now()
	l.pause(syscall.EMFILE, time.Hour)
	require.Less(t, time.Since(start), time.Minute, "Close ends a pause")
}

// fixed is the source of an interface whose address stays.
func fixed(a netip.Addr) func() netip.Addr { return func() netip.Addr { return a } }

package tcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/backend/trust"
	"gorail/test/nofile"
	"gorail/test/tcpmodel"
)

func addrOf(t testing.TB, e *endpoint) address {
	t.Helper()
	to, ok := decodeAddress(e.Addr())
	require.True(t, ok)
	return to
}

// TestModelOfOpenings: other packages' tests know an opening's length, and where an address leads, from the model.
func TestModelOfOpenings(t *testing.T) {
	require.Equal(t, tcpmodel.OpeningLen, openingLen)
	e := newNode(t, nodeMem, nil).target()
	defer e.Close()
	at, ok := tcpmodel.Listens(e.Addr())
	require.True(t, ok)
	a := addrOf(t, e)
	require.Equal(t, a.At, at)
	a.At = netip.MustParseAddrPort("192.0.2.1:1234")
	require.Equal(t, a.Encode(), tcpmodel.ListensAt(e.Addr(), a.At))
}

// silent requires that the connection ends and gave no byte.
func silent(t testing.TB, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := io.ReadAll(c)
	require.Empty(t, got, "an unauthenticated connection got bytes")
	require.False(t, err != nil && isTimeout(err), "the connection stays")
	_ = c.Close()
}

// accepted requires the answer to an opening.
func accepted(t testing.TB, c *net.TCPConn, opening []byte, s *trust.LinkSecret) {
	t.Helper()
	text := make([]byte, answerLen)
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.ReadFull(c, text)
	require.NoError(t, err)
	require.NoError(t, checkAnswer(opening, text, s))
}

// TestShutEndpoints: an endpoint that is shut, closed or does not wait yet lets nobody in.
func TestShutEndpoints(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	for name, end := range map[string]func(e *endpoint){"shut": (*endpoint).Shut, "closed": func(e *endpoint) { require.NoError(t, e.Close()) }} {
		e := n.target()
		to := addrOf(t, e)
		end(e)
		c := dialAt(t, to, "127.0.0.1")
		_, err := c.Write(newOpening(to.Ticket, linkOf(to.Ticket), false))
		require.NoError(t, err, name)
		silent(t, c)
		require.NoError(t, e.Close())
	}
	ep, err := n.rail.OpenEndpoint()
	require.NoError(t, err)
	defer ep.Close()
	to := addrOf(t, ep.(*endpoint))
	c := dialAt(t, to, "127.0.0.1")
	_, err = c.Write(newOpening(to.Ticket, linkOf(to.Ticket), false))
	require.NoError(t, err)
	silent(t, c)
}

// TestFramesWithOpening: frames that come together with the opening are not lost.
func TestFramesWithOpening(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	v := &rules{node: n}
	v.whole = n.register(wholeAt, wholeLen, option.PeersBoth)
	e := n.target()
	to := addrOf(t, e)
	s := &hostilePeer{t: t, v: n, ep: e, c: dialAt(t, to, "127.0.0.1")}
	defer s.close()
	opening := newOpening(to.Ticket, linkOf(to.Ticket), false)
	_, err := s.c.Write(append(bytes.Clone(opening), v.write(1, 64).Encode()...))
	require.NoError(t, err)
	accepted(t, s.c, opening, linkOf(to.Ticket))
	require.Equal(t, uint64(1), s.acked(1))
	require.Equal(t, byte(0xee), n.mem[wholeAt+63])
}

// scarce is a client's socket in a process that can open a few more descriptors, until raise.
func scarce(t *testing.T, more int) (client int, raise func()) {
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	free, err := unix.FcntlInt(uintptr(client), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free + more), Max: was.Max}))
	return client, func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

// holds reports that so many connections wait for the rest of their openings.
func (s *listener) holds(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) == n
}

// goesOn sends the rest of an opening, and reads its answer.
func goesOn(t *testing.T, client int, opening []byte, sent int, to address) {
	_, err := unix.Write(client, opening[sent:])
	require.NoError(t, err)
	answer := make([]byte, answerLen)
	_, err = unix.Read(client, answer)
	require.NoError(t, err)
	require.NoError(t, checkAnswer(opening, answer, linkOf(to.Ticket)))
}

// TestNoDescriptorsToAccept: a process without a free descriptor says so once, with the limit. The connection waits until there is one.
func TestNoDescriptorsToAccept(t *testing.T) {
	if !nofile.Alone(t) {
		return
	}
	n := newNode(t, nodeMem, nil)
	e := n.target()
	defer e.Close()
	to := addrOf(t, e)
	client, raise := scarce(t, 0)
	require.NoError(t, unix.Connect(client, &unix.SockaddrInet4{Port: int(to.At.Port()), Addr: to.At.Addr().As4()}))
	var news []string
	n.until("a warning", func() bool { news = n.rail.Warnings(); return len(news) > 0 })
	require.Len(t, news, 1)
	for _, part := range []string{"cannot accept", to.At.String(), "ulimit -n"} {
		require.Contains(t, news[0], part)
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) { // it tries again each 200 ms
		require.Empty(t, n.rail.Warnings(), "once a minute")
	}
	raise()
	goesOn(t, client, newOpening(to.Ticket, linkOf(to.Ticket), false), 0, to)
}

// TestLastDescriptor: a connection that took the last descriptor stays, though its opening comes in two parts. Nobody waits for its place.
func TestLastDescriptor(t *testing.T) {
	if !nofile.Alone(t) {
		return
	}
	l, err := sockets{}.Listen(loopback, 0, 0)
	require.NoError(t, err)
	defer l.Close()
	w := newLoneWaiter(1)
	l.Expect(&w.waiter)
	to := address{At: l.Addr(), Ticket: w.ticket}
	opening := newOpening(to.Ticket, linkOf(to.Ticket), false)
	client, _ := scarce(t, 1)
	require.NoError(t, unix.Connect(client, &unix.SockaddrInet4{Port: int(to.At.Port()), Addr: to.At.Addr().As4()}))
	sent, err := unix.Write(client, opening[:8])
	require.NoError(t, err)
	for end := time.Now().Add(20 * time.Second); !l.holds(1); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "not accepted")
	}
	l.pause(syscall.EMFILE, 0) // as after each accept from here on
	goesOn(t, client, opening, sent, to)
	require.NoError(t, l.AcceptError())
	require.Zero(t, l.Limited())
}

// TestMove: a rail, and all its shards, listen on the interface's new address. Endpoints from then on have it. The old listener is closed.
func TestMove(t *testing.T) {
	t.Parallel()
	now := netip.MustParsePrefix("127.0.0.1/8")
	lo := func() ([]topo.Interface, error) {
		return []topo.Interface{{Name: "lo", Loopback: true, Up: true, Addrs: []netip.Prefix{now}}}, nil
	}
	for _, shards := range []int{1, 3} {
		now = netip.MustParsePrefix("127.0.0.1/8")
		p := New(Options{Threads: shards, Interfaces: lo})
		find := func() provider.Device {
			list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{provider.TCP}})
			require.NoError(t, err)
			return list[0]
		}
		var rails []provider.Rail
		for i := range shards {
			d := find()
			d.Shard = i
			r, err := p.Open(d)
			require.NoError(t, err)
			rails = append(rails, r)
		}
		at := func(r provider.Rail) netip.AddrPort {
			e, err := r.OpenEndpoint()
			require.NoError(t, err)
			defer e.Close()
			a, ok := decodeAddress(e.Addr())
			require.True(t, ok)
			return a.At
		}
		old := at(rails[0])
		before, err := rails[0].OpenEndpoint() // one that is open stays usable until it is closed
		require.NoError(t, err)
		now = netip.MustParsePrefix("127.0.0.8/8")
		for i, r := range rails {
			require.NoError(t, r.(provider.Mover).Move(now))
			d := r.Device()
			require.Equal(t, []any{"127.0.0.8", "127.0.0.0/8", i}, []any{d.Addr, d.Subnet, d.Shard})
			require.Equal(t, "127.0.0.8", at(r).Addr().String())
			require.Equal(t, at(rails[0]), at(r))
		}
		_, err = net.Dial("tcp", old.String())
		require.Error(t, err)
		require.Error(t, rails[0].(provider.Mover).Move(netip.MustParsePrefix("192.0.2.1/24")), "not an address of this host")
		require.Equal(t, "127.0.0.8", at(rails[0]).Addr().String(), "an error changes nothing")
		require.NoError(t, before.Close())
		for _, r := range rails {
			require.NoError(t, r.Close())
		}
	}
}

// TestShardsShareAListener: the shards of a device are reached at one port, by tickets. The last one closes it.
func TestShardsShareAListener(t *testing.T) {
	t.Parallel()
	p := New(Options{Threads: 3})
	list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{provider.TCP}, Devices: []string{"lo"}})
	require.NoError(t, err)
	require.Equal(t, 3, list[0].Shards)
	shards, at := make([]provider.Rail, 3), ""
	for _, i := range []int{1, 0, 2} { // an interface that comes up late opens in any order
		d := list[0]
		d.Shard = i
		shards[i], err = p.Open(d)
		require.NoError(t, err)
		e, err := shards[i].OpenEndpoint()
		require.NoError(t, err)
		a, ok := decodeAddress(e.Addr())
		require.True(t, ok)
		if at == "" {
			at = a.At.String()
		}
		require.Equal(t, at, a.At.String())
		require.NoError(t, e.Close())
	}
	answers := func() error {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for _, i := range []int{0, 2, 1} {
		require.NoError(t, answers())
		require.NoError(t, shards[i].Close())
	}
	require.Error(t, answers())
	again, err := p.Open(list[0])
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

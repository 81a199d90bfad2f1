package peer

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func TestGarbage(t *testing.T) {
	s := newTarget()
	n := listen(t, s)
	for k, junk := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		{0, 0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff, byte(wire.TypeHello)},
		{0, 0, 0, 2, byte(wire.TypeHello), 0xff, 0xff},
		{0, 0, 0, 2, byte(wire.TypePing), 0x81, 0},
		{},
	} {
		c := fakePeer(t, n)
		_, err := c.Write(junk)
		require.NoError(t, err)
		_ = c.(*net.TCPConn).CloseWrite() // the node may have closed it already
		_, _ = io.Copy(io.Discard, c)     // ends when the node closes it
		eventually(t, func() bool { return n.Stats().BadFrame == uint64(k+1) }, "counted")
	}
	assert.Zero(t, n.Stats().HalfOpen)
	assert.Empty(t, s.events)
}

// Connections that say nothing, or a byte now and then, hold a place until the deadline at most, and less where others wait.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTarget()
		n := newNode(Config{Identity: identity("target"), ConnectTimeout: 10 * time.Second}, s)
		n.gate = newGate(limits{halfOpen: 4, minAge: time.Second, burst: 64, refill: 8, sources: 8})
		defer n.Close()
		var loris sync.WaitGroup
		defer loris.Wait()
		slow := func() {
			here, there := net.Pipe()
			n.admit(there)
			loris.Go(func() {
				defer here.Close()
				if _, err := wire.ReadFrame(here, 0); err != nil {
					return
				}
				for _, err := here.Write([]byte{0}); err == nil; _, err = here.Write([]byte{0}) {
					time.Sleep(3 * time.Second)
				}
			})
		}
		for range 4 {
			slow()
		}
		synctest.Wait()
		assert.Equal(t, uint64(4), n.Stats().HalfOpen)

		start := time.Now()
		here, there := net.Pipe()
		defer here.Close()
		n.admit(there) // waits for a place
		require.IsType(t, &wire.Welcome{}, knock(t, here, n.cfg.Identity, nil))
		assert.Equal(t, time.Second, time.Since(start), "one goes once it is old enough")
		want[evHello](t, s.events)
		assert.Equal(t, uint64(1), n.Stats().MadeRoom)

		time.Sleep(10 * time.Second)
		assert.Zero(t, n.Stats().HalfOpen, "the deadline ends the others")
		assert.Equal(t, uint64(4), n.Stats().MadeRoom+n.Stats().TimedOut+n.Stats().BadFrame)
	})
}

func TestGatePrefersTheRare(t *testing.T) {
	g := newGate(limits{halfOpen: 3, minAge: time.Second, burst: 2, refill: 1, sources: 2})
	t0 := time.Unix(1000, 0)
	many, few, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	guests := make([]*guest, 0, 5)
	for k, source := range []netip.Addr{few, many, many, third, third} {
		c, other := net.Pipe()
		other.Close()
		p := &guest{conn: c, source: source}
		guests = append(guests, p)
		if k < 3 {
			_, evicted := g.tryEnter(p, t0.Add(time.Duration(k)*time.Millisecond))
			require.Nil(t, evicted)
		}
	}
	wait, evicted := g.tryEnter(guests[3], t0.Add(500*time.Millisecond))
	assert.Nil(t, evicted)
	assert.Nil(t, guests[3].place)
	assert.Equal(t, 501*time.Millisecond, wait)
	_, evicted = g.tryEnter(guests[3], t0.Add(1001*time.Millisecond))
	assert.Same(t, guests[1], evicted, "of the source with the most, the one that is old enough")
	assert.False(t, g.leave(guests[1]))

	for range 2 {
		g.fail(few, t0.Add(2*time.Second))
	}
	_, evicted = g.tryEnter(guests[4], t0.Add(2*time.Second))
	assert.Same(t, guests[0], evicted, "of the source that has failed too often")
	for k := range 100 {
		g.fail(netip.AddrFrom4([4]byte{10, 0, 0, byte(k)}), t0)
	}
	assert.LessOrEqual(t, len(g.failed), 2, "memory is bounded")
}

// Of many that are held all have the same chance to be thrown out, and whoever is quick has none.
func TestGateThrowsOutAtRandom(t *testing.T) {
	const places, rounds = 64, 6400
	g := newGate(limits{halfOpen: places, minAge: 20 * time.Millisecond, burst: 64, refill: 8, sources: 8})
	now := time.Unix(1000, 0)
	age := map[int]int{} // of those thrown out, in tenths of the mean
	for range rounds {
		now = now.Add(2 * time.Millisecond)
		c, other := net.Pipe()
		other.Close()
		_, evicted := g.tryEnter(&guest{conn: c}, now)
		if evicted != nil {
			require.GreaterOrEqual(t, now.Sub(evicted.since), g.limits.minAge)
			age[min(3, int(now.Sub(evicted.since)/(places*2*time.Millisecond)))]++
		}
	}
	require.Equal(t, places, g.halfOpen())
	for k := range 4 { // of the oldest alone all would be of one age
		assert.Greater(t, age[k], rounds/100, "%v", age)
	}
}

func TestSourceOf(t *testing.T) {
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	assert.Equal(t, sourceOf(tcp("[::ffff:192.0.2.1]:1")), sourceOf(tcp("192.0.2.1:2")))
	assert.Equal(t, sourceOf(tcp("[2001:db8::1]:1")), sourceOf(tcp("[2001:db8::ffff]:1")))
	assert.NotEqual(t, sourceOf(tcp("[2001:db8:0:1::1]:1")), sourceOf(tcp("[2001:db8:0:2::1]:1")))
	assert.Equal(t, netip.Addr{}, sourceOf(&net.UnixAddr{}))
}

// exhausted is a listener in a process without descriptors.
type exhausted struct {
	net.Listener
	calls int
}

func (e *exhausted) Accept() (net.Conn, error) { e.calls++; return nil, syscall.EMFILE }
func (e *exhausted) Addr() net.Addr            { return &net.TCPAddr{} }
func (e *exhausted) Close() error              { return nil }

func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{}, newTarget())
		l := new(exhausted)
		n.listeners = []net.Listener{l}
		n.spawn(func() { n.accept(l) })
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Less(t, l.calls, 70)
		assert.Greater(t, l.calls, 60)
		assert.Equal(t, uint64(l.calls), n.Stats().AcceptErrors)
		n.Close()
	})
}

func TestListen(t *testing.T) {
	for _, bad := range []string{"", "localhost:1", "0.0.0.0:0", "[::]:0", "192.0.2.77:0"} {
		_, err := NewNode(Config{Listen: []string{"127.0.0.1:0", bad}}, newTarget())
		require.ErrorIs(t, err, ErrListen)
		assert.ErrorContains(t, err, bad)
	}
	n, err := NewNode(Config{Listen: []string{"127.0.0.1:0", "127.0.0.2:0"}}, newTarget())
	require.NoError(t, err)
	defer n.Close()
	require.Len(t, n.Addrs(), 2)
	_, err = NewNode(Config{Listen: n.Addrs()[1:]}, newTarget())
	var errno syscall.Errno
	assert.True(t, errors.As(err, &errno) && errno == syscall.EADDRINUSE)
}

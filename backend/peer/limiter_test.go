package peer

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPrefersTheRare(t *testing.T) {
	l := newLimiter(Limits{HalfOpen: 4, MinAge: time.Second, Burst: 2, Refill: 1, Sources: 2})
	t0 := time.Unix(1000, 0)
	many, few, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	pending := make([]*pendingHandshake, 0, 6)
	for k, source := range []netip.Addr{few, many, many, many, third, third} {
		c, other := net.Pipe()
		other.Close()
		p := l.newPending(t.Context(), c, source)
		pending = append(pending, p)
		if k < 4 {
			_, _, evicted := l.tryEnter(p, t0.Add(time.Duration(k)*time.Millisecond))
			require.Nil(t, evicted)
		}
	}
	entered, wait, evicted := l.tryEnter(pending[4], t0.Add(500*time.Millisecond))
	assert.Nil(t, evicted)
	assert.False(t, entered)
	assert.Equal(t, 501*time.Millisecond, wait)
	_, _, evicted = l.tryEnter(pending[4], t0.Add(1001*time.Millisecond))
	assert.Same(t, pending[1], evicted, "of the source with the most, the one that is old enough")
	assert.False(t, l.Leave(pending[1]))

	for range 2 {
		l.Fail(few, t0.Add(2*time.Second))
	}
	_, _, evicted = l.tryEnter(pending[5], t0.Add(2*time.Second))
	assert.Same(t, pending[0], evicted, "of the source that has failed too often")
	for k := range 100 {
		l.Fail(netip.AddrFrom4([4]byte{10, 0, 0, byte(k)}), t0)
	}
	assert.LessOrEqual(t, len(l.failed), 2, "memory is bounded")
}

// The rate of accepts is HalfOpen in MinAge, however many sources a flood has. This needs no clock: it waits as long as it is told to.
func TestRateOfAnyNumberOfSources(t *testing.T) {
	full := float64(Default.HalfOpen) / Default.MinAge.Seconds()
	for _, sources := range []int{1, 2, 9, 16, 64, 150, 300, 1000, 4096, 12000} {
		l := newLimiter(Default)
		rng := rand.New(rand.NewPCG(1, uint64(sources)))
		begin := time.Unix(1000, 0)
		now, accepted := begin, 0
		c, other := net.Pipe()
		other.Close()
		for ; now.Sub(begin) < 2*time.Second; accepted++ {
			n := rng.IntN(sources)
			p := l.newPending(t.Context(), c, netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}))
			for {
				entered, wait, evicted := l.tryEnter(p, now)
				if evicted != nil {
					l.Fail(evicted.Source, now)
				}
				if entered {
					break
				}
				require.Positive(t, wait)
				now = now.Add(wait)
			}
			now = now.Add(20 * time.Microsecond) // a flood above the rate
		}
		rate := float64(accepted) / now.Sub(begin).Seconds()
		t.Logf("%d sources: %.0f accepts a second", sources, rate)
		assert.Greater(t, rate, full/2, "%d sources", sources)
		assert.LessOrEqual(t, len(l.failed), Default.Sources)
	}
}

// A peer that takes longer than MinAge stays, while a source with many more handshakes has only young ones.
func TestSlowAmongFew(t *testing.T) {
	l := newLimiter(Default)
	now := time.Unix(1000, 0)
	c, other := net.Pipe()
	other.Close()
	honest := l.newPending(t.Context(), c, source(200))
	_, _, _ = l.tryEnter(honest, now)
	for n := range 20000 {
		p := l.newPending(t.Context(), c, source(n%9))
		for entered := false; !entered; {
			var wait time.Duration
			entered, wait, _ = l.tryEnter(p, now)
			now = now.Add(wait)
		}
		now = now.Add(20 * time.Microsecond)
	}
	require.True(t, l.Leave(honest))
}

// A source that has failed often is remembered while a flood of others that fail once passes.
func TestWorstIsRemembered(t *testing.T) {
	l := newLimiter(Default)
	now := time.Unix(1000, 0)
	for range 1000 {
		l.Fail(source(1), now)
	}
	for n := range 20000 {
		l.Fail(netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}), now)
	}
	require.Len(t, l.failed, Default.Sources)
	require.Greater(t, l.level(source(1), now), Default.Burst)
}

// All of many held handshakes have the same chance to be evicted, and a quick one is never evicted.
func TestEvictsAtRandom(t *testing.T) {
	const places, rounds = 64, 6400
	l := newLimiter(Limits{HalfOpen: places, MinAge: 20 * time.Millisecond, Burst: 64, Refill: 8, Sources: 8})
	now := time.Unix(1000, 0)
	age := map[int]int{} // ages of the evicted ones, in tenths of the mean
	for range rounds {
		now = now.Add(2 * time.Millisecond)
		c, other := net.Pipe()
		other.Close()
		_, _, evicted := l.tryEnter(l.newPending(t.Context(), c, netip.Addr{}), now)
		if evicted != nil {
			require.GreaterOrEqual(t, now.Sub(evicted.since), l.limits.MinAge)
			age[min(3, int(now.Sub(evicted.since)/(places*2*time.Millisecond)))]++
		}
	}
	require.Equal(t, places, l.HalfOpen())
	for k := range 4 { // if only the oldest were evicted, all would have one age
		assert.Greater(t, age[k], rounds/100, "%v", age)
	}
}

func TestSourceOf(t *testing.T) {
	tcp := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	assert.Equal(t, SourceOf(tcp("[::ffff:192.0.2.1]:1")), SourceOf(tcp("192.0.2.1:2")))
	assert.Equal(t, SourceOf(tcp("[2001:db8::1]:1")), SourceOf(tcp("[2001:db8::ffff]:1")))
	assert.NotEqual(t, SourceOf(tcp("[2001:db8:0:1::1]:1")), SourceOf(tcp("[2001:db8:0:2::1]:1")))
	assert.Equal(t, netip.Addr{}, SourceOf(&net.UnixAddr{}))
}

// Enter gives up when the node ends, and Close ends the handshakes.
func TestEnd(t *testing.T) {
	l := newLimiter(Limits{HalfOpen: 1, MinAge: time.Hour, Burst: 1, Refill: 1, Sources: 1})
	ctx, cancel := context.WithCancel(t.Context())
	here, there := net.Pipe()
	p, evicted := l.Enter(ctx, there, netip.Addr{})
	require.NotNil(t, p)
	require.Nil(t, evicted)
	waits, other := net.Pipe()
	cancel()
	late, _ := l.Enter(ctx, other, netip.Addr{})
	require.Nil(t, late)
	for _, c := range []net.Conn{waits, here} {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		l.Close()
	}
	require.True(t, l.Leave(p))
	require.False(t, l.Leave(p))
}

// A connection that enters while another evicts it is evicted and does not enter twice. This is for the race
// detector.
func TestEntersWhileEvicted(t *testing.T) {
	l := newLimiter(Limits{HalfOpen: 1, Burst: 1, Refill: 1, Sources: 1})
	evicted := make(chan *pendingHandshake, 2)
	for range 2 {
		go func() {
			here, there := net.Pipe()
			defer here.Close()
			_, e := l.Enter(t.Context(), there, netip.Addr{})
			evicted <- e
		}()
	}
	first, second := <-evicted, <-evicted
	assert.NotEqual(t, first == nil, second == nil, "one evicts the other")
	assert.Equal(t, 1, l.HalfOpen())
	l.Close()
}

// A process that lacks descriptors keeps few handshakes, and admits as many connections in a time: those are younger when they end.
func TestFewPlaces(t *testing.T) {
	limits := Default
	few := false
	limits.Places = func(_ net.Conn, most int) int {
		if few {
			return 8
		}
		return most
	}
	l := newLimiter(limits)
	now := time.Now().Add(-time.Minute)
	enter := func(n int) bool {
		c, other := net.Pipe()
		t.Cleanup(func() { _, _ = c.Close(), other.Close() })
		ok, _, _ := l.tryEnter(l.newPending(t.Context(), c, netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)})), now)
		return ok
	}
	for n := range limits.HalfOpen {
		require.True(t, enter(n))
	}
	few = true
	now = now.Add(limits.MinAge)
	for n := range limits.HalfOpen {
		require.True(t, enter(n))
		now = now.Add(limits.MinAge / time.Duration(limits.HalfOpen)) // Default's rate
	}
	require.LessOrEqual(t, l.HalfOpen(), 8)
	held := l.HalfOpen()
	l.Shed()
	require.Equal(t, held-1, l.HalfOpen())
}

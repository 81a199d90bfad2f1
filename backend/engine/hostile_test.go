package engine

import (
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/peer/secure"
	"gorail/backend/provider/fake"
	"gorail/backend/quota"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// hostile is an initiator without an engine. It has the token, so it can send any frame.
type hostile struct {
	net.Conn
	session uint64
}

// sayHello proves the token and sends Hello. nil: the connection broke.
func sayHello(to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) *hostile {
	return sayHelloAs("mallory", to, key, session, offers)
}

// sayHelloAs is sayHello under a name.
func sayHelloAs(name string, to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) *hostile {
	s := securely(to, key)
	if s == nil {
		return nil
	}
	h := &wire.Hello{Mac: trust.HelloMac(to.Token, s.Bind), Engine: key.Pin.Engine(), Agent: name, Session: session, Offers: offers}
	if wire.WriteFrame(s, h) != nil {
		s.Close()
		return nil
	}
	return &hostile{s, session}
}

// securely proves the token and the key. nil: the connection broke.
func securely(to wire.ConnBlob, key *trust.Key) *secure.Conn {
	c, err := net.Dial("tcp", to.Control[0])
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if challenge, err := secure.ReadChallenge(c); err == nil {
		if s, err := secure.Connect(c, challenge, &to, key); err == nil {
			return s
		}
	}
	c.Close()
	return nil
}

// knock sends Hello and returns the answer: a Welcome or a Reject. nil: the connection broke.
func knock(to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) (*hostile, wire.Frame) {
	h := sayHello(to, key, session, offers)
	if h == nil {
		return nil, nil
	}
	f, err := wire.ReadFrame(h, 0)
	if err != nil {
		h.Close()
		return nil, nil
	}
	return h, f
}

// Initiators close their connections while their Hellos wait for a turn. The target opens nothing for them.
func TestHungUpInQueue(t *testing.T) {
	t.Parallel()
	const peers = 50
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann")
	to, offers := a.conn(), h.offer(a, 1)
	release := a.targets.HoldHellos()
	for i := range peers {
		c := sayHello(to, strangerKey(i), 1, offers)
		require.NotNil(t, c)
		c.Close()
	}
	until(t, "all Hellos wait", func() bool { return a.node.Stats().In == peers })
	release()
	until(t, "all control connections are closed", func() bool { return a.node.Stats().In == 0 })
	require.Zero(t, a.node.Stats().Accepted)
	require.Zero(t, a.life.IDs.Load(), "no session was made")
}

func (a *agent) conn() wire.ConnBlob {
	blob, err := wire.DecodeConn(a.Conn())
	require.NoError(a.t, err)
	return blob
}

// offer is n offers with the address of a closed endpoint.
func (h *harness) offer(a *agent, n int) []wire.EndpointOffer {
	addr := []byte{2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0} // a struct sockaddr_in
	if h.fabric != nil {
		ep, err := a.rails.List[0].OpenEndpoint()
		require.NoError(h, err)
		addr = slices.Clone(ep.Addr())
		require.NoError(h, ep.Close())
	}
	offers := make([]wire.EndpointOffer, n)
	for i := range offers {
		offers[i] = wire.EndpointOffer{ID: uint64(i + 1), Addr: addr}
	}
	return offers
}

// strangerKey is the key of the n-th engine that is none of ours.
func strangerKey(n int) *trust.Key {
	if k, ok := strangerKeys.Load(n); ok {
		return k.(*trust.Key)
	}
	k, err := trust.NewKey()
	if err != nil {
		panic(err)
	}
	one, _ := strangerKeys.LoadOrStore(n, k)
	return one.(*trust.Key)
}

var strangerKeys sync.Map // int -> *trust.Key

// A Hello offers more links for a pair of rails than qps_per_rail allows. The target rejects the session, and the Reject names
// the option.
func TestTooManyOffers(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann", "qps_per_rail", "2")
	to := a.conn()
	_, f := knock(to, strangerKey(1), 1, h.offer(a, 3))
	require.IsType(t, &wire.Reject{}, f)
	require.Equal(t, wire.CodeLimit, f.(*wire.Reject).Code)
	require.Contains(t, f.(*wire.Reject).Text, "qps_per_rail")
	require.EqualValues(t, 1, a.limited(limits.LinksPerPair))
	require.Zero(t, a.sessions())
	c, f := knock(to, strangerKey(1), 1, h.offer(a, 2))
	require.IsType(t, &wire.Welcome{}, f)
	c.Close()
	until(t, "the session ends and its endpoints are given back", func() bool { return a.sessions() == 0 && a.targets.Used() == quota.Usage{} })
}

// max_endpoints bounds the endpoints of all peers. One address may have three quarters of them. A Reject beyond the bound names
// the option. A later dial succeeds when endpoints are free again.
func TestEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann", "max_endpoints", "8"), h.agent("bob", "connect_timeout", "10s")
	to, offers := a.conn(), h.offer(a, 1)
	var in []*hostile
	busy := 0
	for i := range 20 {
		c, f := knock(to, strangerKey(i), 1, offers)
		if r, ok := f.(*wire.Reject); ok {
			require.Equal(t, wire.CodeBusy, r.Code)
			require.Contains(t, r.Text, "max_endpoints")
			busy++
			c.Close()
			continue
		}
		require.IsType(t, &wire.Welcome{}, f)
		in = append(in, c)
	}
	require.LessOrEqual(t, a.sessions(), 6)
	require.GreaterOrEqual(t, len(in), 6) // on a starved host a session may have looked silent and given way
	require.Equal(t, 20, len(in)+busy)
	require.GreaterOrEqual(t, a.limited(limits.Endpoints), uint64(busy))
	require.NoError(t, b.LoadConn("ann", a.Conn()))
	require.NoError(t, b.Notify("ann", []byte("at last"))) // waits until there is room
	for _, c := range in {
		c.Close()
	}
	a.expect("bob:at last")
}

// An initiator engine has one session. A late Hello of an older session is rejected, and the newer session goes on.
func TestLateHello(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann")
	to, offers := a.conn(), h.offer(a, 1)
	c, f := knock(to, strangerKey(1), 7, offers)
	require.IsType(t, &wire.Welcome{}, f)
	defer c.Close()
	_, f = knock(to, strangerKey(1), 6, offers)
	require.IsType(t, &wire.Reject{}, f)
	require.Equal(t, wire.CodeSession, f.(*wire.Reject).Code)
	require.Equal(t, 1, a.sessions())
}

// notif_memory bounds the notifications of all peers that the application has not taken. None is lost.
func TestNotificationsOfAllPeers(t *testing.T) {
	t.Parallel()
	const peers, each, size, memory = 6, 4000, 1000, 1 << 20
	h := onFake(t, fake.TCPCaps())
	to := h.agent("ann", "notif_memory", "1MiB", "notif_queue", "1MiB")
	var all []*agent
	for i := range peers {
		from := h.agent(string(rune('b'+i)), "notif_queue", "16MiB")
		require.NoError(t, from.LoadConn("ann", to.Conn()))
		all = append(all, from)
		for range each {
			require.NoError(t, from.Notify("ann", make([]byte, size)))
		}
	}
	received := func() (n uint64) { return to.core.Counters()["notifs_received"] }
	const most = uint64(memory+peers*(64<<10))/size + peers*2*32
	last, same := uint64(0), 0
	until(t, "the memory is full, and the senders stop", func() bool {
		for _, a := range all {
			a.take()
		}
		if same++; received() != last {
			last, same = received(), 0
		}
		require.Less(t, last, most)
		return last > memory/2/size && same > 200
	})
	until(t, "all notifications arrive", func() bool {
		for _, a := range all {
			a.take()
		}
		return len(to.take()) == peers*each
	})
}

// latency returns the median and the 99th percentile of n WRITEs of the pair's buffer.
func (p *pair) latency(n int) (p50, p99 time.Duration) {
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	defer x.release()
	lat := make([]time.Duration, n)
	for i := range lat {
		start := time.Now()
		x.run()
		lat[i] = time.Since(start)
	}
	slices.Sort(lat)
	return lat[n/2], lat[n*99/100]
}

func median(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }

func entries(dir string) int {
	list, _ := os.ReadDir(dir)
	return len(list)
}

// Peers with the token dial all the time. The session of an established pair goes on meanwhile. The descriptors and sessions of
// the attack are given back at most four seconds after it.
func TestAttackWithTheToken(t *testing.T) {
	const rounds, attackers = 5, 8
	h := onTCP(t)
	p := h.pair(4096)
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	measure := func() (p50, p99 time.Duration) {
		var mid, high []time.Duration
		for range rounds {
			m, h := p.latency(300)
			mid, high = append(mid, m), append(high, h)
		}
		return median(mid), median(high)
	}
	before50, before99 := measure()
	fds, threads := entries("/proc/self/fd"), entries("/proc/self/task")
	to, offers := p.b.conn(), h.offer(p.b, 1)
	ep, err := p.a.rails.List[0].OpenEndpoint() // a peer must be there
	require.NoError(t, err)
	defer ep.Close()
	offers[0].Addr = slices.Clone(ep.Addr())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var sessions, refused atomic.Int64
	for k := range attackers {
		wg.Go(func() {
			var held []net.Conn
			defer func() {
				for _, c := range held {
					c.Close()
				}
			}()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c, f := knock(to, strangerKey(k<<12|i), 1, offers)
				switch f.(type) {
				case *wire.Welcome:
					sessions.Add(1)
					if held = append(held, c.Conn); len(held) > 200 {
						held[0].Close()
						held = held[1:]
					}
				case *wire.Reject:
					refused.Add(1)
					c.Close()
				}
			}
		})
	}
	until(t, "the attack has made 200 sessions", func() bool { return sessions.Load() > 200 })
	during50, during99 := measure()
	mostFds, mostThreads, most := entries("/proc/self/fd"), entries("/proc/self/task"), p.b.sessions()
	close(stop)
	wg.Wait()
	over := time.Now()
	next := over
	until(t, "sessions and descriptors are given back", func() bool {
		if now := time.Now(); now.After(next) {
			next = now.Add(500 * time.Millisecond)
			t.Logf("after %v: %d sessions, %d descriptors", time.Since(over), p.b.sessions(), entries("/proc/self/fd"))
		}
		return p.b.sessions() <= 1 && entries("/proc/self/fd") <= fds+8
	})
	back := time.Since(over)
	t.Logf("p50 %v, during %v; p99 %v, during %v; %d sessions, %d refused, %d at once; descriptors %d, %d, threads %d, %d; back after %v", before50, during50,
		before99, during99, sessions.Load(), refused.Load(), most, fds, mostFds, threads, mostThreads, back)
	require.Less(t, mostThreads, threads+40)
	require.Less(t, back, 4*time.Second, "it takes two seconds on an idle host")
	require.Less(t, during50, 10*before50+10*time.Millisecond, "the median of five medians, of 300 WRITEs each")
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
	p.same()
}

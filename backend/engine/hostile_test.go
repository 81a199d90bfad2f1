package engine

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/test/fake"
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
func securely(to wire.ConnBlob, key *trust.Key) *peer.SecureConn {
	c, err := net.Dial("tcp", to.Control[0])
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if challenge, err := peer.ReadChallenge(c); err == nil {
		if s, err := peer.Connect(c, challenge, &to, key); err == nil {
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

// The endpoints of all peers have a bound. One address may have three quarters of them. A Reject beyond the bound says what
// raises it. A later dial succeeds when endpoints are free again.
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
			require.Contains(t, r.Text, "ulimit -n")
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

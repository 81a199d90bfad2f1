package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// testTimeout is when a test gives up. A successful test never waits for it.
const testTimeout = 20 * time.Second

// The events are the calls of the handlers, in order.
type (
	evOffers struct{}
	evReady  struct{ w wire.Welcome }
	evKeys   struct{ k wire.Keys }
	evRevoke struct {
		id      uint64
		regions []uint64
	}
	evFenced   struct{ f wire.Fenced }
	evStaged   struct{ f wire.Frame }
	evDrained  struct{ next uint64 }
	evSnapshot struct{ f wire.Snapshot }
	evMoved    struct{ control []string }
	evResumed  struct{ own, peer netip.Addr } // beside the others: tests of what the handlers get otherwise take no note of it
	evLost     struct{ err error }
	evHello    struct {
		in *In
		h  wire.Hello
	}
	evRevoked struct {
		in  *In
		id  uint64
		all bool
	}
	evGone struct {
		in  *In
		err error
	}
)

type events chan any

func newEvents() events { return make(events, 2048) }

// note drops what nobody takes.
func (ev events) note(e any) {
	select {
	case ev <- e:
	default:
	}
}

// want returns the next event, which must be a T.
func want[T any](t testing.TB, ev events) T {
	t.Helper()
	select {
	case e := <-ev:
		got, ok := e.(T)
		require.Truef(t, ok, "got %T: %v", e, e)
		return got
	case <-time.After(testTimeout):
		var none T
		require.Failf(t, "nothing came", "want %T", none)
		return none
	}
}

// initiator records its calls. It answers each Revoke if out is set.
type initiator struct {
	events
	out   atomic.Pointer[Out] // answers; nil: nobody does
	offer []wire.EndpointOffer
	hook  func() error // in Offers
	ready func()       // in Ready

	ways events // of evResumed

	written atomic.Uint64 // a third of what it says it READs
}

func newInitiator() *initiator {
	return &initiator{events: newEvents(), ways: newEvents(), offer: []wire.EndpointOffer{{Rail: 1, Own: 2, Addr: []byte("initiator")}}}
}

func (i *initiator) Offers() ([]wire.EndpointOffer, error) {
	i.events <- evOffers{}
	if i.hook != nil {
		return i.offer, i.hook()
	}
	return i.offer, nil
}

func (i *initiator) Ready(w wire.Welcome) {
	i.events <- evReady{w}
	if i.ready != nil {
		i.ready()
	}
}
func (i *initiator) Keys(k wire.Keys)             { i.events <- evKeys{k} }
func (i *initiator) Fenced(f wire.Fenced)         { i.events <- evFenced{f} }
func (i *initiator) Staged(f wire.Frame)          { i.events <- evStaged{f} }
func (i *initiator) Drained(next uint64)          { i.events <- evDrained{next} }
func (i *initiator) Snapshot(f wire.Snapshot)     { i.events <- evSnapshot{f} }
func (i *initiator) Wider([]wire.Rail)            {}
func (i *initiator) Resumed(own, peer netip.Addr) { i.ways.note(evResumed{own, peer}) }
func (i *initiator) Moved(control []string)       { i.events <- evMoved{control} }
func (i *initiator) Moves() wire.Moves {
	return wire.Moves{Written: i.written.Load(), Read: 3 * i.written.Load()}
}
func (i *initiator) Lost(err error)              { i.events <- evLost{err} }
func (i *initiator) Renew(id uint64, r []uint64) { i.Revoke(id, r) }

func (i *initiator) Revoke(id uint64, r []uint64) {
	i.events <- evRevoke{id, r}
	if out := i.out.Load(); out != nil {
		out.Revoked(id, true)
	}
}

// target records its calls. The hooks may be nil.
type target struct {
	events
	ways  events // of evResumed
	hello func(in *In, h wire.Hello) (Accept, error)
	keys  func(r []wire.Claim) []wire.KeyEntry
	fence atomic.Pointer[func(f wire.Fence) (wire.Fenced, error)]
}

// onFence sets the hook of fences; nil: none.
func (s *target) onFence(f func(f wire.Fence) (wire.Fenced, error)) {
	if f == nil {
		s.fence.Store(nil)
		return
	}
	s.fence.Store(&f)
}

func newTarget() *target { return &target{events: newEvents(), ways: newEvents()} }

func (s *target) Hello(in *In, h wire.Hello) (Accept, error) {
	s.events <- evHello{in, h}
	if s.hello != nil {
		return s.hello(in, h)
	}
	return Accept{Offers: []wire.EndpointOffer{{Rail: 1, Own: 7, Addr: []byte("target")}}, NextSeq: 5}, nil
}

func (s *target) KeysWanted(_ *In, r []wire.Claim) ([]wire.KeyEntry, bool) {
	if s.keys != nil {
		return s.keys(r), true
	}
	entries := make([]wire.KeyEntry, len(r))
	for i := range r {
		entries[i] = wire.KeyEntry{Known: true, Region: r[i].Addr, Gen: 1, Rails: []wire.RailKey{{Rail: 1, Key: r[i].Addr, Base: 8}}}
	}
	return entries, true
}

func (s *target) Fence(in *In, f wire.Fence) error {
	answer := wire.Fenced{ID: f.ID, Rail: f.Rail, Epoch: f.Epoch, Addr: []byte("fresh"), NextSeq: 9}
	if hook := s.fence.Load(); hook != nil {
		var err error
		if answer, err = (*hook)(f); err != nil {
			return err
		}
	}
	in.Fenced(answer)
	return nil
}

// Stage answers a RingReq with a ring, and a Copy with success.
func (s *target) Stage(in *In, f wire.Frame) error {
	switch f := f.(type) {
	case *wire.RingReq:
		in.Staged(&wire.Ring{ID: f.ID, Range: wire.Claim{Range: wire.Range{Addr: 1, Len: 4, Mem: f.Mem, Dev: f.For.Dev}}, Slot: 2})
	case *wire.Copy:
		if len(f.Pieces) == 0 {
			return errors.New("nothing to copy")
		}
		in.Staged(&wire.Copied{ID: f.ID})
	}
	return nil
}
func (s *target) Revoked(in *In, id uint64, all bool) { s.events <- evRevoked{in, id, all} }
func (s *target) Gone(in *In, err error)              { s.events <- evGone{in, err} }
func (s *target) Drain(in *In, next uint64)           { in.Drained(next) }
func (s *target) Resumed(_ *In, own, peer netip.Addr) { s.ways.note(evResumed{own, peer}) }
func (s *target) Moved(_ *In, control []string)       { s.events <- evMoved{control} }

// Snapshot answers with the id, and once more without a question.
func (s *target) Snapshot(in *In, id uint64) {
	in.Snapshot(&wire.Snapshot{ID: id, State: wire.SnapshotServing, Heard: wire.NewAgo(time.Since(in.LastHeard()))})
	in.Snapshot(&wire.Snapshot{State: wire.SnapshotNone})
}

// config is that of a new engine of this host.
func config(agent string) Config {
	key, err := trust.NewKey()
	if err != nil {
		panic(err)
	}
	b := wire.ConnBlob{Version: wire.Version, Engine: key.Pin.Engine(), Pin: key.Pin, Agent: agent, Boot: "this boot", NetNS: 1}
	_, _ = rand.Read(b.Token[:])
	return Config{Identity: b, Key: key}
}

// newBlob is the connection blob of a new engine of this host.
func newBlob(agent string) wire.ConnBlob { return config(agent).Identity }

// listen makes a node on loopback, which is closed at the end of the test.
func listen(t testing.TB, h TargetHandler, change ...func(*Config)) *Node {
	t.Helper()
	cfg := config(t.Name())
	cfg.Listen = []string{"127.0.0.1:0"}
	for _, f := range change {
		f(&cfg)
	}
	n, err := NewNode(cfg, h)
	require.NoError(t, err)
	t.Cleanup(n.Close)
	return n
}

// blob returns the connection blob of a node, with its addresses.
func blob(n *Node) wire.ConnBlob {
	b := n.cfg.Identity
	b.Control = n.Addrs()
	return b
}

// noAcks replaces Acknowledges when the peer's host is unreachable.
func noAcks(net.Conn, time.Duration) bool { return false }

// pair is a ready session.
type pair struct {
	from, to *Node
	i        *initiator
	s        *target
	out      *Out
	in       *In
}

func newPair(t testing.TB, change ...func(*Config)) *pair {
	t.Helper()
	p := &pair{i: newInitiator(), s: newTarget()}
	p.to, p.from = listen(t, p.s, change...), listen(t, newTarget(), change...)
	p.connect(t)
	return p
}

func (p *pair) connect(t testing.TB) {
	t.Helper()
	p.out = p.from.Dial(blob(p.to), 0, p.i)
	want[evOffers](t, p.i.events)
	p.in = want[evHello](t, p.s.events).in
	want[evReady](t, p.i.events)
}

// pipes makes a pair whose sessions use net.Pipe, for synctest's clock. A single config is for both nodes.
func pipes(t testing.TB, cfg ...Config) *pair {
	t.Helper()
	p := &pair{i: newInitiator(), s: newTarget()}
	a, b := cfg[0], cfg[len(cfg)-1]
	for of, cfg := range map[string]*Config{"a": &a, "b": &b} {
		own := config(of)
		cfg.Identity, cfg.Key = own.Identity, own.Key
	}
	p.from, p.to = newNode(a, newTarget()), newNode(b, p.s)
	p.from.dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		p.to.admit(there)
		return here, nil
	}
	to := p.to.cfg.Identity
	to.Control = []string{"127.0.0.1:1"}
	p.out = p.from.Dial(to, 0, p.i)
	want[evOffers](t, p.i.events)
	p.in = want[evHello](t, p.s.events).in
	want[evReady](t, p.i.events)
	return p
}

func (p *pair) close() {
	p.from.Close()
	p.to.Close()
}

// fakePeer is a raw connection to a node's listener.
func fakePeer(t testing.TB, n *Node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Addrs()[0])
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	return c
}

// secureByHand authenticates a bare connection as an initiator with a key of its own.
func secureByHand(t testing.TB, c net.Conn, to wire.ConnBlob, key *trust.Key) *SecureConn {
	t.Helper()
	challenge, err := ReadChallenge(c)
	require.NoError(t, err)
	s, err := Connect(c, challenge, &to, key)
	require.NoError(t, err)
	return s
}

// handshakeByHand does an initiator's handshake on a bare connection, as a new engine or as one with the given key.
func handshakeByHand(t testing.TB, c net.Conn, to wire.ConnBlob, keys ...*trust.Key) (*SecureConn, wire.Frame) {
	t.Helper()
	keys = append(keys, config("").Key)
	s := secureByHand(t, c, to, keys[0])
	return s, asks(t, s, helloByHand(s, to, keys[0]))
}

// helloByHand is a correct Hello.
func helloByHand(c *SecureConn, to wire.ConnBlob, key *trust.Key) *wire.Hello {
	return &wire.Hello{Mac: trust.HelloMac(to.Token, c.Bind), Engine: key.Pin.Engine(), Agent: "by hand", Session: 1}
}

// asks sends a frame and returns the answer.
func asks(t testing.TB, c net.Conn, f wire.Frame) wire.Frame {
	t.Helper()
	require.NoError(t, wire.WriteFrame(c, f))
	answer, err := wire.ReadFrame(c, wire.HandshakeLimit)
	require.NoError(t, err)
	return answer
}

// short is the number for a run with -short, else the other.
func short(few, many int) int {
	if testing.Short() {
		return few
	}
	return many
}

// eventually polls a condition that no event reports.
func eventually(t testing.TB, cond func() bool, text string) {
	t.Helper()
	require.Eventually(t, cond, testTimeout, time.Millisecond, text)
}

func (e evLost) String() string { return "lost: " + e.err.Error() }
func (e evGone) String() string { return "gone: " + e.err.Error() }

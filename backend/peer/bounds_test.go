package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/test/certs"
)

// many makes n sessions with different engines, by hand.
func many(t *testing.T, to *Node, s *target, n int) (conns []net.Conn) {
	for range n {
		c, f := handshakeByHand(t, fakePeer(t, to), blob(to))
		require.IsType(t, &wire.Welcome{}, f)
		want[evHello](t, s.events)
		conns = append(conns, c)
	}
	return conns
}

// The sessions of one address have their own bound, which the refusal names. A place becomes free when a session
// ends.
func TestSessionsOfASource(t *testing.T) {
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.MaxSessions, c.MaxPerSource, c.Limits = 8, 2, &limits.Counts{} })
	conns := many(t, to, s, 2)
	_, f := handshakeByHand(t, fakePeer(t, to), blob(to))
	r, ok := f.(*wire.Reject)
	require.True(t, ok)
	assert.Equal(t, wire.CodeBusy, r.Code)
	assert.Contains(t, r.Text, "one address may have three quarters of option max_sessions")
	assert.EqualValues(t, 1, to.cfg.Limits.Read()["source_sessions"])
	require.NoError(t, wire.WriteFrame(conns[0], &wire.Bye{}))
	want[evGone](t, s.events)
	next := &pair{from: listen(t, newTarget()), to: to, i: newInitiator(), s: s}
	next.connect(t) // retries until there is room
}

// certified gives a node an operator's certificate with these names.
func certified(ca *certs.Authority, names ...string) func(*Config) {
	return func(c *Config) { c.Operator, c.Identity.Proves = ca.Operator(names...), true }
}

// as begins a session by hand, as a new engine of an operator. A starved node drops connections whose handshakes it has not come to.
func as(t *testing.T, to *Node, o *trust.Operator) (net.Conn, wire.Frame) {
	t.Helper()
	for range 10 {
		key := config("").Key
		c := secureByHand(t, fakePeer(t, to), blob(to), key)
		hello := helloByHand(c, blob(to), key)
		var err error
		hello.Identity, err = o.Prove(trust.Initiator, c.Bind, c.Ends, nil)
		require.NoError(t, err)
		require.NoError(t, wire.WriteFrame(c, hello))
		answer, err := wire.ReadFrame(c, wire.HandshakeLimit)
		if errors.Is(err, io.EOF) {
			continue
		}
		require.NoError(t, err)
		return c, answer
	}
	t.Fatal("the node drops each connection")
	return nil, nil
}

// fill begins sessions of an operator until one is refused.
func fill(t *testing.T, to *Node, s *target, o *trust.Operator) (conns []net.Conn, why *wire.Reject) {
	t.Helper()
	for len(conns) < 20 {
		c, f := as(t, to, o)
		if why, refused := f.(*wire.Reject); refused {
			return conns, why
		}
		require.IsType(t, &wire.Welcome{}, f)
		want[evHello](t, s.events)
		conns = append(conns, c)
	}
	t.Fatal("there is no bound")
	return nil, nil
}

// The sessions of one certified identity have their own bound beside another identity, which the refusal names. Others of
// the same address are served.
func TestSessionsOfAnIdentity(t *testing.T) {
	t.Parallel()
	ca := certs.New(t)
	s := newTarget()
	to := listen(t, s, minute, certified(ca, "target"), func(c *Config) { c.MaxSessions, c.MaxPerSource, c.Limits = 8, 5, &limits.Counts{} })
	honest := func() {
		(&pair{from: listen(t, newTarget(), minute, certified(ca, "honest.example")), to: to, i: newInitiator(), s: s}).connect(t)
	}
	honest()
	conns, why := fill(t, to, s, ca.Operator("greedy.example", "spiffe://example/greedy"))
	assert.Len(t, conns, 3, "three quarters of what one address may have")
	assert.Equal(t, wire.CodeBusy, why.Code)
	assert.Contains(t, why.Text, "one identity may have three quarters of option max_sessions")
	assert.Contains(t, why.Text, `"spiffe://example/greedy", "greedy.example"`)
	_, f := as(t, to, ca.Operator("greedy.example", "spiffe://example/greedy"))
	require.IsType(t, &wire.Reject{}, f, "another certificate with the same names")
	assert.Equal(t, map[string]uint64{"identity_sessions": 2, "source_sessions": 0, "sessions": 0}, reached(to))
	honest()
	require.NoError(t, wire.WriteFrame(conns[0], &wire.Bye{}))
	want[evGone](t, s.events)
	for refused := true; refused; _, refused = f.(*wire.Reject) { // the place is free a little later
		_, f = as(t, to, ca.Operator("greedy.example", "spiffe://example/greedy"))
	}
	require.IsType(t, &wire.Welcome{}, f)
}

// reached returns the counters of the bounds of sessions.
func reached(n *Node) map[string]uint64 {
	all := n.cfg.Limits.Read()
	return map[string]uint64{"identity_sessions": all["identity_sessions"], "source_sessions": all["source_sessions"], "sessions": all["sessions"]}
}

// An identity that is alone gets every place. When another one comes, in spite of live sessions everywhere, it gets one of
// these places. The first identity keeps its share.
func TestLentSessions(t *testing.T) {
	t.Parallel()
	for name, max := range map[string]struct{ all, source int }{"all": {4, 8}, "one address": {8, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := certs.New(t)
			s := newTarget()
			to := listen(t, s, minute, certified(ca, "target"), func(c *Config) { c.MaxSessions, c.MaxPerSource, c.Limits = max.all, max.source, &limits.Counts{} })
			greedy := ca.Operator("greedy.example")
			conns, why := fill(t, to, s, greedy)
			assert.Len(t, conns, 4)
			assert.Contains(t, why.Text, map[string]string{"all": "(option max_sessions)", "one address": "one address may have three quarters of option max_sessions"}[name])
			late := &pair{from: listen(t, newTarget(), minute, certified(ca, "late.example")), to: to, i: newInitiator(), s: s}
			late.out = late.from.Dial(blob(to), 0, late.i)
			want[evOffers](t, late.i.events)
			gone := want[evGone](t, s.events)
			assert.ErrorIs(t, gone.err, ErrRecalled)
			assert.ErrorContains(t, gone.err, "option max_sessions")
			late.in = want[evHello](t, s.events).in
			want[evReady](t, late.i.events)
			for range 3 {
				_, f := as(t, to, greedy)
				require.IsType(t, &wire.Reject{}, f)
				assert.Contains(t, f.(*wire.Reject).Text, "one identity may have three quarters of option max_sessions")
			}
			_, f := as(t, to, ca.Operator("another.example"))
			require.IsType(t, &wire.Reject{}, f)
			assert.Equal(t, wire.CodeBusy, f.(*wire.Reject).Code)
			assert.Empty(t, s.events, "no session has more than its share")
			assert.EqualValues(t, 4, to.Stats().In)
		})
	}
}

// A shared secret is no identity: it proves membership, and all peers have it. A certificate is one.
func TestSecretIsNoIdentity(t *testing.T) {
	t.Parallel()
	_, a := knows(t, "a")
	s := newTarget()
	to := listen(t, s, minute, a)
	member := &pair{from: listen(t, newTarget(), minute, a), to: to, i: newInitiator(), s: s}
	member.connect(t)
	assert.Zero(t, member.in.Owner().Identity)
	_, b := knows(t, "b", "a")
	(&pair{from: listen(t, newTarget(), minute, a), to: listen(t, s, minute, b), i: newInitiator(), s: s}).connect(t)
	ca := certs.New(t)
	named := &pair{from: listen(t, newTarget(), minute, certified(ca, "a")), to: listen(t, s, minute, certified(ca, "b")), i: newInitiator(), s: s}
	named.connect(t)
	assert.NotZero(t, named.in.Owner().Identity)
}

// Unfinished frames take memory up to a bound over all peers. Above the bound, the session with the most memory ends.
func TestHalfFramesOfAllPeers(t *testing.T) {
	const memory = 8 << 20
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.Memory = memory })
	honest := &pair{from: listen(t, newTarget(), minute), to: to, i: newInitiator(), s: s}
	honest.connect(t)
	conns := many(t, to, s, 12)
	half := make([]byte, 5+900<<10)
	binary.BigEndian.PutUint32(half, wire.MaxBody)
	half[4] = byte(wire.TypeKeysReq)
	for _, c := range conns {
		go func() { _, _ = c.Write(half) }() // the node closes some of them meanwhile
	}
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrOverflow)
	assert.ErrorContains(t, gone.err, "and those of all sessions more than")
	eventually(t, func() bool { return to.env.Held.Load() <= memory }, "within the bound")
	honest.out.Fence(1, 1, 1, nil)
	for {
		select {
		case e := <-s.events:
			require.IsType(t, evGone{}, e)
			require.NotSame(t, honest.in, e.(evGone).in)
			continue
		case e := <-honest.i.events:
			require.IsType(t, evFenced{}, e)
		}
		break
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, func() bool { return to.env.Held.Load() < 64<<10 }, "all memory is released")
}

// Unacknowledged answers count towards the bound.
func TestAnswersOfAllPeers(t *testing.T) {
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.Memory = 1 << 20 })
	conns := many(t, to, s, 1)
	conn := conns[0]
	go func() {
		for id := uint64(1); ; id++ { // without reading or acknowledging
			if wire.WriteFrame(conn, &wire.KeysReq{ID: id, Ranges: ranges(wire.MaxRanges, 0)}) != nil {
				return
			}
		}
	}()
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrOverflow)
	assert.ErrorContains(t, gone.err, "and those of all sessions more than")
	eventually(t, func() bool { return to.env.Held.Load() == 0 }, "all memory is released")
}

// slowEnd is a target whose sessions take time to free what they hold.
type slowEnd struct {
	*target
	free chan struct{}
}

func (s slowEnd) Gone(in *In, err error) {
	s.target.Gone(in, err)
	<-s.free
}

// stayAlive sends heartbeats, so that a session is not silent on a slow machine.
func stayAlive(ctx context.Context, c net.Conn) {
	for seq := uint64(1); ctx.Err() == nil && wire.WriteFrame(c, &wire.Ping{Seq: seq}) == nil; seq++ {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// An identity loses what it has beyond its share, and no more, however long an ended session holds its place.
func TestRecallWaitsForTheEnd(t *testing.T) {
	t.Parallel()
	ca := certs.New(t)
	s := slowEnd{newTarget(), make(chan struct{})}
	to := listen(t, s, minute, certified(ca, "target"), func(c *Config) { c.MaxSessions, c.MaxPerSource, c.Limits = 8, 8, &limits.Counts{} })
	greedy, late := ca.Operator("greedy.example"), ca.Operator("late.example")
	conns, _ := fill(t, to, s.target, greedy)
	require.Len(t, conns, 8)
	for _, c := range conns {
		go stayAlive(t.Context(), c)
	}
	begun := time.Now()
	for i := 0; i < 60 && time.Since(begun) < 3*time.Second; i++ { // more than 10 ms apart, as handshakes are
		_, f := as(t, to, late)
		require.IsType(t, &wire.Reject{}, f)
		time.Sleep(10 * time.Millisecond)
	}
	ended := len(s.events)
	require.Positive(t, ended)
	const again = 10 * time.Second // limits.recallEvery: a starved test may take longer
	require.LessOrEqual(t, ended, 1+int(time.Since(begun)/again), "one session ends, and the next one when that one's place is free")
	close(s.free)
	for got := 0; got < 2; {
		_, f := as(t, to, late)
		if _, ok := f.(*wire.Welcome); ok {
			got++
		}
	}
	for range 5 {
		_, f := as(t, to, late)
		require.IsType(t, &wire.Reject{}, f)
	}
	assert.EqualValues(t, 8, to.Stats().In)
	gone := 0
	for len(s.events) > 0 {
		if _, ok := (<-s.events).(evGone); ok {
			gone++
		}
	}
	assert.Equal(t, 2, gone)
}

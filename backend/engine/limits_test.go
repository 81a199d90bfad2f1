package engine

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/certs"
	"gorail/test/fake"
)

// limited is how often a bound took effect.
func (a *agent) limited(l limits.Limit) uint64 {
	s, err := a.Snapshot()
	require.NoError(a.t, err)
	n, known := s.Limits[limits.List[l].Name]
	require.True(a.t, known)
	return n
}

// enters is a knock that must be welcome.
func enters(t testing.TB, to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) *hostile {
	t.Helper()
	var c *hostile
	var f wire.Frame
	for range 10 { // a starved target gives up a handshake
		if c, f = knock(to, key, session, offers); f != nil {
			break
		}
	}
	require.IsType(t, &wire.Welcome{}, f)
	t.Cleanup(func() { c.Close() })
	return c
}

// await reads frames until one is of the type T.
func await[T wire.Frame](t testing.TB, c *hostile) T {
	t.Helper()
	for {
		f, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		if f, ok := f.(T); ok {
			return f
		}
	}
}

// ended waits until the other side has closed the connection.
func (c *hostile) ended(t testing.TB) {
	t.Helper()
	for {
		_, err := wire.ReadFrame(c, 0)
		if err != nil {
			var timeout interface{ Timeout() bool }
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%v have passed", patience)
			return
		}
	}
}

// Lost sessions over shared endpoints go on taking notifications; there are not more than a few hundred.
func TestLingeringIsBounded(t *testing.T) {
	t.Parallel()
	const most, more = 256, 5
	h := onFake(t, sharedCaps())
	a := h.agent("ann")
	to, offers := a.conn(), h.offer(a, 1)
	for i := range most + more {
		c := enters(t, to, strangerKey(i), 1, offers)
		for _, s := range a.targets.All() {
			if s.In().Engine() == strangerKey(i).Pin.Engine() {
				s.Close("the test ends it")
			}
		}
		c.Close()
	}
	until(t, "too many linger", func() bool { return a.sessions() == most })
	require.EqualValues(t, more, a.limited(limits.Lingering))
}

// Requests for keys take turns, over all sessions.
func TestKeyRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann")
	m := a.memory(4096)
	to, offers := a.conn(), h.offer(a, 1)
	release := a.targets.HoldKeyRequests()
	var in []*hostile
	for i := range 3 {
		c := enters(t, to, strangerKey(i), 1, offers)
		require.NoError(t, wire.WriteFrame(c, &wire.KeysReq{ID: 7, Ranges: wire.Claims{a.claim(m.owned())}}))
		in = append(in, c)
	}
	until(t, "they do not wait", func() bool { return a.limited(limits.KeyRequests) == 3 })
	release()
	for _, c := range in {
		k := await[*wire.Keys](t, c)
		require.True(t, k.Entries[0].Known)
	}
}

// Peers that hold keys and answer no revocation delay a deregistration once, not one after the other.
func TestSilentHolders(t *testing.T) {
	t.Parallel()
	const peers, timeout = 10, time.Second
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann", "cancel_timeout", timeout.String())
	m := a.memory(4096)
	to, offers := a.conn(), h.offer(a, 1)
	for i := range peers {
		c := enters(t, to, strangerKey(i), 1, offers)
		require.NoError(t, wire.WriteFrame(c, &wire.KeysReq{ID: 7, Ranges: wire.Claims{a.claim(m.owned())}}))
		require.True(t, await[*wire.Keys](t, c).Entries[0].Known)
	}
	start := time.Now()
	require.NoError(t, a.Deregister(m.md.region))
	require.Less(t, time.Since(start), peers*timeout*3/4)
	require.EqualValues(t, peers, a.limited(limits.Revocations))
	until(t, "their sessions go on", func() bool { return a.sessions() == 0 })
	m.register()
}

// A target that revokes regions without end while it owes keys loses its session.
func TestEarlyRevokesAreBounded(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	require.NoError(t, a.Notify("bob", []byte("hello")))
	b.expect("ann:hello")
	defer b.targets.HoldKeyRequests()()
	theirs := b.memory(4096).seenBy(a) // its keys are asked for
	served := b.targets.Latest()
	until(t, "no keys are asked for", func() bool { return b.limited(limits.KeyRequests) > 0 })
	id := uint64(1 << 40)
	for range 18 {
		gone := make([]uint64, wire.MaxRevoke)
		for i := range gone {
			id++
			gone[i] = id
		}
		served.In().Revoke(id, gone)
	}
	until(t, "the session goes on", func() bool { return a.limited(limits.EarlyRevokes) > 0 })
	until(t, "the session goes on", func() bool { return h.log.has("while it owes keys") })
	_ = theirs
}

// asksForRing asks by hand for a ring in host memory, for memory of GPU 0.
func (c *hostile) asksForRing(t testing.TB, memory wire.Claim) *wire.Ring {
	t.Helper()
	require.NoError(t, wire.WriteFrame(c, &wire.RingReq{ID: 9, For: memory}))
	return await[*wire.Ring](t, c)
}

// Rings for peers are bounded over all sessions. Who asks for one more is told the option; an honest peer's transfer then fails with a
// status of its own, and works as soon as there is room.
func TestStagingMemory(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	a, b := h.agent("ann"), h.agent("bob", "staging_memory", "4MiB") // three rings for one address
	loadBoth(a, b)
	owned := g.block(b, 0, 1<<20)
	claim := b.claim(owned.md.region)
	mine, theirs := g.block(a, -1, 1<<20), owned.seenBy(a)
	to, offers := b.conn(), h.offer(b, 1)
	var in []*hostile
	for i := range 3 {
		c := enters(t, to, strangerKey(i), 1, offers)
		ring := c.asksForRing(t, claim)
		require.EqualValues(t, 1<<20, ring.Range.Len, ring.Text)
		in = append(in, c)
	}
	late := enters(t, to, strangerKey(9), 1, offers)
	for n := range 5 { // as often as it likes
		ring := late.asksForRing(t, claim)
		require.Zero(t, ring.Range.Len)
		require.Equal(t, wire.CodeBusy, ring.Code)
		require.Contains(t, ring.Text, "staging_memory")
		require.EqualValues(t, n+1, b.limited(limits.StagingRings))
	}
	x := a.whole2(transfer.Write, mine, theirs).post()
	require.Equal(t, errcode.ErrNotSupported, errcode.Status(x.wait()))
	require.True(t, h.log.has("staging_memory"))
	require.Positive(t, b.limited(limits.StagingRings))
	in[0].Close()
	until(t, "there is no room", func() bool {
		x.post()
		return x.wait() == done
	})
	pattern.Same(t, mine.bytes(), theirs.bytes())
	require.Zero(t, late.asksForRing(t, claim).Range.Len, "the honest one has it now")
	x.release()
}

// A peer that asks for copies without a ring loses its session, and nothing is copied.
func TestCopiesWithoutRing(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	b := h.agent("bob")
	theirs := g.block(b, 0, 1<<20)
	c := enters(t, b.conn(), strangerKey(1), 1, h.offer(b, 1))
	rng := wire.Range{Addr: theirs.addr, Len: 1 << 20, Mem: region.VRAM}
	require.NoError(t, wire.WriteFrame(c, &wire.Copy{ID: 1, At: 4096, Regions: wire.Claims{{Range: rng}}, Pieces: wire.CopyPieces{{Addr: theirs.addr, Len: 64}}}))
	c.ended(t)
	until(t, "the session goes on", func() bool { return b.sessions() == 0 })
	require.EqualValues(t, 1, b.limited(limits.StagedCopies))
}

// What an ended session held is free at once at both ends, though timers of it go on.
func TestEndedSessionsAreFreed(t *testing.T) {
	t.Parallel()
	t.Run("target", endedTargetIsFreed)
	t.Run("initiator", func(t *testing.T) {
		h := onFake(t, fake.TCPCaps())
		a, b := h.agent("ann", "connect_timeout", "1h"), h.agent("bob")
		require.NoError(t, a.LoadConn("bob", b.Conn()))
		a.connected("bob")
		session := weak.Make(a.initiators.Of("bob"))
		require.NoError(t, a.Disconnect("bob"))
		until(t, "it is kept", func() bool {
			runtime.GC()
			return session.Value() == nil
		})
	})
}

func endedTargetIsFreed(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann", "connect_timeout", "1h")
	c := enters(t, a.conn(), strangerKey(1), 1, h.offer(a, 1))
	served := weak.Make(a.targets.Latest())
	require.NoError(t, wire.WriteFrame(c, &wire.Bye{}))
	until(t, "it is kept", func() bool {
		runtime.GC()
		return served.Value() == nil
	})
}

// certified are the options of an engine with such a certificate.
func certified(ca *certs.Authority, name string) []string {
	c := ca.Files(name)
	return []string{"tls_ca", c.CA, "tls_cert", c.Cert, "tls_key", c.Key, "tls_peers", "*"}
}

// knockAs is a knock with an operator's certificate.
func knockAs(t testing.TB, o *trust.Operator, to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) (*hostile, wire.Frame) {
	t.Helper()
	for range 10 { // a starved target gives up a handshake
		s := securely(to, key)
		if s == nil {
			continue
		}
		id, err := o.Prove(trust.Initiator, s.Bind, s.Ends, nil)
		require.NoError(t, err)
		h := &wire.Hello{Mac: trust.HelloMac(to.Token, s.Bind), Engine: key.Pin.Engine(), Agent: "mallory", Session: session, Offers: offers, Identity: id}
		if wire.WriteFrame(s, h) == nil {
			if f, err := wire.ReadFrame(s, 0); err == nil {
				t.Cleanup(func() { s.Close() })
				return &hostile{s, session}, f
			}
		}
		s.Close()
	}
	require.FailNow(t, "no answer")
	return nil, nil
}

// One identity has taken all endpoints, and its sessions live. An engine of another identity at the same address
// connects all the same. The first identity keeps its share, and learns what bounds it.
func TestIdentityEndpoints(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	ca := certs.New(t)
	a := h.agent("ann", append(certified(ca, "ann"), "max_endpoints", "8")...)
	b := h.agent("bob", certified(ca, "bob")...)
	greedy, to, offers := ca.Operator("greedy"), a.conn(), h.offer(a, 1)
	for i := range 6 { // three quarters: all that one address may have
		_, f := knockAs(t, greedy, to, strangerKey(i), 1, offers)
		require.IsType(t, &wire.Welcome{}, f)
	}
	_, f := knockAs(t, greedy, to, strangerKey(6), 1, offers)
	require.Contains(t, f.(*wire.Reject).Text, "of this address")
	require.Zero(t, a.limited(limits.IdentityEndpoints))

	loadBoth(a, b)
	require.NoError(t, b.Notify("ann", []byte("hello")))
	a.expect("bob:hello")
	until(t, "the greedy one has more than three quarters beside others", func() bool {
		_, f := knockAs(t, greedy, to, strangerKey(7), 1, offers)
		why, refused := f.(*wire.Reject)
		require.True(t, refused)
		require.Equal(t, wire.CodeBusy, why.Code)
		require.Contains(t, why.Text, "ulimit -n")
		return a.limited(limits.IdentityEndpoints) > 0
	})
	require.NoError(t, b.Notify("ann", []byte("and goodbye")))
	a.expect("bob:and goodbye")
}

// One identity has taken all rings, and its sessions live. An engine of another identity gets one all the same.
func TestLentStagingMemory(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	ca := certs.New(t)
	a, b := h.agent("ann", certified(ca, "ann")...), h.agent("bob", append(certified(ca, "bob"), "staging_memory", "4MiB")...) // three rings for one address
	loadBoth(a, b)
	owned := g.block(b, 0, 1<<20)
	claim := b.claim(owned.md.region)
	mine, theirs := g.block(a, -1, 1<<20), owned.seenBy(a)
	greedy, to, offers := ca.Operator("greedy"), b.conn(), h.offer(b, 1)
	for i := range 4 {
		c, f := knockAs(t, greedy, to, strangerKey(i), 1, offers)
		require.IsType(t, &wire.Welcome{}, f)
		require.Equal(t, i < 3, c.asksForRing(t, claim).Range.Len > 0, "it may have all that an address may")
	}
	x := a.whole2(transfer.Write, mine, theirs).post()
	require.Equal(t, errcode.ErrNotSupported, errcode.Status(x.wait()))
	until(t, "there is no ring for another identity", func() bool {
		x.post()
		return x.wait() == done
	})
	pattern.Same(t, mine.bytes(), theirs.bytes())
	require.True(t, h.log.has("its identity has more than its share of bounce buffers"))
	until(t, "one of four has ended, and there is ann's", func() bool { return b.sessions() == 4 })
	x.release()
}

// Rings count by identity, too.
func TestIdentityStagingMemory(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	ca := certs.New(t)
	a, b := h.agent("ann", certified(ca, "ann")...), h.agent("bob", append(certified(ca, "bob"), "staging_memory", "4MiB")...) // three rings for one address, two of them for one identity
	loadBoth(a, b)
	owned := g.block(b, 0, 1<<20)
	claim := b.claim(owned.md.region)
	mine, theirs := g.block(a, -1, 1<<20), owned.seenBy(a)
	x := a.whole2(transfer.Write, mine, theirs).post()
	require.Equal(t, done, x.wait())
	greedy, to, offers := ca.Operator("greedy"), b.conn(), h.offer(b, 1)
	for i := range 4 {
		c, f := knockAs(t, greedy, to, strangerKey(i), 1, offers)
		require.IsType(t, &wire.Welcome{}, f)
		ring := c.asksForRing(t, claim)
		if i < 2 {
			require.EqualValues(t, 1<<20, ring.Range.Len, ring.Text)
			continue
		}
		require.Zero(t, ring.Range.Len)
		require.Equal(t, wire.CodeBusy, ring.Code)
		require.Contains(t, ring.Text, "of this identity")
		require.Contains(t, ring.Text, "staging_memory")
		require.EqualValues(t, i-1, b.limited(limits.IdentityStagingRings))
	}
	require.Zero(t, b.limited(limits.StagingRings))
	x.post()
	require.Equal(t, done, x.wait())
	pattern.Same(t, mine.bytes(), theirs.bytes())
	x.release()
}

// A peer that is refused at a bound learns what bounds it, and whether another try may succeed: then the code is busy.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ca := certs.New(t)
	for _, tt := range []struct {
		limit   limits.Limit
		params  []string
		offers  int
		engines int // of the hostile peer: its Hellos come from this many engines
		code    wire.Code
		text    string
	}{
		{limits.Sessions, []string{"max_sessions", "2"}, 1, 4, wire.CodeBusy, "(option max_sessions)"},
		{limits.SourceSessions, []string{"max_sessions", "4"}, 1, 5, wire.CodeBusy, "one address may have three quarters of option max_sessions"},
		{limits.IdentitySessions, []string{"max_sessions", "6"}, 1, 5, wire.CodeBusy, "one identity may have three quarters of option max_sessions"},
		{limits.OlderSessions, nil, 1, 1, wire.CodeBusy, "sessions of this engine have not ended yet"},
		{limits.Endpoints, []string{"max_endpoints", "3"}, 1, 4, wire.CodeBusy, "ulimit -n"},
		{limits.Endpoints, []string{"max_endpoints", "4", "qps_per_rail", "4"}, 4, 1, wire.CodeLimit, "ulimit -n"},
		{limits.LinksPerPair, []string{"qps_per_rail", "2"}, 3, 1, wire.CodeLimit, "option qps_per_rail"},
	} {
		t.Run(fmt.Sprint(limits.List[tt.limit].Name, " ", tt.code), func(t *testing.T) {
			t.Parallel()
			caps := fake.TCPCaps()
			if tt.limit == limits.OlderSessions {
				caps = sharedCaps()
			}
			h := onFake(t, caps)
			a := h.agent("ann", append(certified(ca, "ann"), tt.params...)...)
			greedy, to, offers := ca.Operator("greedy"), a.conn(), h.offer(a, tt.offers)
			if tt.limit == limits.IdentitySessions { // an identity that is alone has no bound of its own
				_, f := knockAs(t, ca.Operator("other"), to, strangerKey(tt.engines), 1, offers)
				require.IsType(t, &wire.Welcome{}, f)
			}
			var why *wire.Reject
			for n := uint64(1); why == nil && n < 10; n++ {
				_, f := knockAs(t, greedy, to, strangerKey(int(n)%tt.engines), n, offers)
				why, _ = f.(*wire.Reject)
			}
			require.NotNil(t, why)
			require.Equal(t, tt.code, why.Code, why.Text)
			require.Contains(t, why.Text, tt.text)
			require.Positive(t, a.limited(tt.limit))
		})
	}
}

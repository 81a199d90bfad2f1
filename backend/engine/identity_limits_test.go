package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/identity"
	"gorail/backend/identity/certs"
	"gorail/backend/limits"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/internal/pattern"
)

// certified are the options of an engine with such a certificate.
func certified(ca *certs.Authority, name string) []string {
	c := ca.Files(name)
	return []string{"tls_ca", c.CA, "tls_cert", c.Cert, "tls_key", c.Key, "tls_peers", "*"}
}

// knockAs is a knock with an operator's certificate.
func knockAs(t testing.TB, o *identity.Operator, to wire.ConnBlob, key *trust.Key, session uint64, offers []wire.EndpointOffer) (*hostile, wire.Frame) {
	t.Helper()
	for range 10 { // a starved target gives up a handshake
		s := securely(to, key)
		if s == nil {
			continue
		}
		id, err := o.Prove(identity.Initiator, s.Bind, s.Ends, nil)
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
// connects all the same. The first identity keeps its share, and learns which option bounds it.
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
		require.Contains(t, why.Text, "max_endpoints")
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
	require.Equal(t, status.ErrNotSupported, status.Code(x.wait()))
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

// A peer that is refused at a bound learns the option, and whether another try may succeed: then the code is busy.
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
		{limits.Sessions, []string{"max_sessions", "2", "max_sessions_per_source", "3"}, 1, 4, wire.CodeBusy, "(option max_sessions)"},
		{limits.SourceSessions, []string{"max_sessions", "3", "max_sessions_per_source", "2"}, 1, 4, wire.CodeBusy, "(option max_sessions_per_source)"},
		{limits.IdentitySessions, []string{"max_sessions_per_identity", "2"}, 1, 4, wire.CodeBusy, "(option max_sessions_per_identity)"},
		{limits.OlderSessions, nil, 1, 1, wire.CodeBusy, "sessions of this engine have not ended yet"},
		{limits.Endpoints, []string{"max_endpoints", "3"}, 1, 4, wire.CodeBusy, "option max_endpoints"},
		{limits.Endpoints, []string{"max_endpoints", "4", "qps_per_rail", "4"}, 4, 1, wire.CodeLimit, "option max_endpoints"},
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

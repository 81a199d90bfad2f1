package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/link"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// onSecured runs body on fabrics that refuse a Connect without Secure, and on which the ends of a link talk only if they
// have the same secret.
func onSecured(t *testing.T, body func(h *harness)) {
	sideBySide(t, body, map[string]func(t testing.TB) *harness{
		"one link":  func(t testing.TB) *harness { return onFake(t, fake.SecuredCaps()) },
		"two links": func(t testing.TB) *harness { return onLinks(t, 2, fake.SecuredCaps()) },
		"two rails": func(t testing.TB) *harness { return onRails(t, 2, fake.SecuredCaps()) },
	})
}

// keySalt is the salt of keys of the engine's session with an initiator.
func (a *agent) keySalt(initiator string) [16]byte {
	a.t.Helper()
	for _, t := range a.targets.All() {
		if t.In().Agent() == initiator {
			return t.In().KeySalt()
		}
	}
	a.t.Fatal("no session of ", initiator)
	return [16]byte{}
}

// moves moves bytes both ways, over memory that was registered before and over memory that is registered now.
func (p *pair) moves(round uint64) {
	p.a.t.Helper()
	for op := range 2 {
		p.mine.fill(round)
		p.theirs.fill(round + 1000)
		p.a.whole(op, p.mine, p.theirs).run("n")
		p.b.expect("ann:n")
		p.same()
		mine, theirs := p.a.memory(8192).fill(round), p.b.memory(8192).fill(round+1).seenBy(p.a)
		p.a.whole(op, mine, theirs).run()
		pattern.Same(p.a.t, mine.b, theirs.b)
	}
}

// Both ends of each link have the same secret: at first, after fences of either side with transfers in flight, after the
// control session is resumed, after a reconnect, and after a restart of the peer.
func TestSecured(t *testing.T) {
	t.Parallel()
	onSecured(t, func(h *harness) {
		a, b := h.agent("ann"), h.agent("bob")
		g := h.gate(b)
		g.open(true)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p := &pair{a, b, a.memory(1 << 20), b.memory(1 << 20).seenBy(a)}
		p.moves(1)
		r := a.connected("bob")
		links := len(r.links())
		fences := func(round uint64) {
			x := a.whole(transfer.Write, p.mine.fill(round), p.theirs)
			b.rail().Stall()
			x.post("replayed")
			r.fenceAll("a test")
			b.rail().Release()
			require.Equal(h, done, x.wait())
			b.expect("ann:replayed")
			p.same()
			for i, end := range []*agent{a, b} { // b sends only credits
				h.failAt(end, 1)
				p.moves(round + uint64(i))
			}
			until(h, "all links work", func() bool { return r.atWork() == links })
		}
		fences(10)

		secret, resumed := b.keySalt("ann"), b.node.Stats().Resumed
		g.cut()
		until(h, "the control session is resumed", func() bool { return b.node.Stats().Resumed > resumed && r.ready() })
		require.Equal(h, secret, b.keySalt("ann"))
		p.moves(20)
		fences(30)

		r.fail("a test")
		p.moves(40)
		require.NotEqual(h, secret, b.keySalt("ann"))

		g.end()
		require.NoError(h, b.Close())
		p.b = h.agent("bob")
		require.NoError(h, a.LoadConn("bob", p.b.Conn()))
		p.theirs = p.b.memory(1 << 20).seenBy(a)
		p.moves(50)
		require.Equal(h, links, a.connected("bob").count(func(l *link.Link) bool { return l.Up }))
	})
}

// Each session has keys of its own. Another session's key opens nothing.
func TestKeysOfSessions(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("provider keys ", own), func(t *testing.T) {
			t.Parallel()
			caps := fake.SecuredCaps()
			caps.ProviderKeys = own
			h := onFake(t, caps)
			p := h.pair(1 << 20)
			p.moves(1)
			carol := h.agent("carol")
			require.NoError(t, carol.LoadConn("bob", p.b.Conn()))
			carol.whole(transfer.Write, carol.memory(4096), p.theirs.seenBy(carol)).run()

			there := p.b.regions.Regions.Get(p.theirs.owned())
			keyOf := func(initiator string) core.Key {
				k := there.RailKeys(p.b.keySalt(initiator))[0]
				return core.Key{Key: k.Key, Base: k.Base}
			}
			require.NotEqual(t, keyOf("ann"), keyOf("carol"))
			here, before := p.a.regions.Regions.Get(p.theirs.md.region), string(p.theirs.b)
			x := p.a.whole(transfer.Write, p.mine.fill(2), p.theirs)
			here.Core.SetKey(0, keyOf("carol"))
			x.post().fails(status.ErrBackend)
			require.True(t, before == string(p.theirs.b))
			here.Core.SetKey(0, keyOf("ann"))
			x.run()
			p.same()
		})
	}
}

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// A peer that has given its session up without a word, and begins another: the older one's endpoint is closed first, and what was
// under way through it never lands.
func TestOlderSession(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
		old := p.a.connected("bob")
		require.Equal(h, 1, p.b.sessions())
		p.b.rail().Stall()
		x := p.a.whole(transfer.Write, p.mine.fill(2), p.theirs).post()
		old.inFlight(x)
		p.a.initiators.Forget("bob") // as if by another process in its place, which knows nothing of it
		require.NoError(h, p.a.LoadConn("bob", p.b.Conn()))
		p.a.controlReady("bob") // its link can't be tried yet
		require.Equal(h, 1, p.b.sessions(), "the older one ends before the new one has endpoints")
		before := string(p.theirs.b)
		p.b.rail().Release()
		x.fails(status.ErrBackend)
		require.True(h, before == string(p.theirs.b), "nothing lands late")
		theirs := (&memory{owner: p.b, b: p.theirs.b, blob: p.theirs.blob}).seenBy(p.a)
		p.a.whole(transfer.Write, p.mine, theirs).run()
		p.same()
	})
}

// Where peers share an endpoint nothing of the older session's is cut off: it ends when what was under way has landed.
func TestOlderSessionShared(t *testing.T) {
	t.Parallel()
	caps := fake.EFACaps()
	caps.SharedEndpoint = true
	h := onFake(t, caps)
	p := h.pair(64 << 10)
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
	old := p.a.connected("bob")
	p.b.rail().Stall()
	x := p.a.whole(transfer.Write, p.mine.fill(2), p.theirs).post()
	old.inFlight(x)
	require.NoError(t, p.a.Disconnect("bob"))
	require.NoError(t, p.a.LoadConn("bob", p.b.Conn()))
	p.a.controlReady("bob") // its link can't be tried yet
	require.Equal(t, 2, p.b.sessions(), "the older one goes on")
	p.b.rail().Release()
	require.NotEqual(t, inProg, x.wait())
	p.same()
	until(t, "the older session ends", func() bool { return p.b.sessions() == 1 })
	require.False(t, h.log.has("link error"), "nothing was cut off")
}

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// An initiator gives its session up without a goodbye and begins another. The target closes the older session's endpoint first.
// A WRITE that was in flight there never lands.
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
		p.a.initiators.Forget("bob") // as a new process in its place, which does not know the session
		require.NoError(h, p.a.LoadConn("bob", p.b.Conn()))
		p.a.controlReady("bob") // the new link can't be probed yet
		require.Equal(h, 1, p.b.sessions(), "the older session ends before the new one has endpoints")
		before := string(p.theirs.b)
		p.b.rail().Release()
		x.fails(status.ErrBackend)
		require.True(h, before == string(p.theirs.b), "no WRITE lands late")
		theirs := (&memory{owner: p.b, b: p.theirs.b, blob: p.theirs.blob}).seenBy(p.a)
		p.a.whole(transfer.Write, p.mine, theirs).run()
		p.same()
	})
}

// The sessions use a shared endpoint, which the target can't close for one session. The older session ends when its WRITE has
// landed.
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
	p.a.controlReady("bob") // the new link can't be probed yet
	require.Equal(t, 2, p.b.sessions(), "the older session goes on")
	p.b.rail().Release()
	require.NotEqual(t, inProg, x.wait())
	p.same()
	until(t, "the older session ends", func() bool { return p.b.sessions() == 1 })
	require.False(t, h.log.has("link error"), "no link of the older session failed")
}

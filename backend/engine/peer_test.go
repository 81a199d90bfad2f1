package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// Transfers and notifications that are posted before the connection is up wait for it. They are sent then without another call.
func TestPostBeforeConnection(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		a, b := h.agent("ann"), h.agent("bob")
		g := h.gate(b)
		require.NoError(h, a.LoadConn("bob", g.blob))
		require.NoError(h, a.Connect("bob"))
		p := &pair{a, b, a.memory(1 << 20).fill(1), b.memory(1 << 20).seenBy(a)}
		p.theirs.fill(2)
		const half = 512 << 10
		x := a.prep(transfer.Write, []Desc{p.mine.desc(0, half)}, []Desc{p.theirs.desc(0, half)}, "bob").post("x")
		y := a.prep(transfer.Read, []Desc{p.mine.desc(half, half)}, []Desc{p.theirs.desc(half, half)}, "bob").post("y")
		require.NoError(h, a.Notify("bob", []byte("n")))
		for range 100 {
			require.Equal(h, inProg, x.check())
		}
		_, err := y.Post()
		require.Equal(h, errcode.ErrRepostActive, errcode.StatusOf(err))
		g.open(true)
		until(h, "all three notifications arrive", func() bool { return len(b.take()) == 3 })
		require.ElementsMatch(h, []string{"ann:x", "ann:y", "ann:n"}, b.got)
		require.Equal(h, done, x.wait())
		require.Equal(h, done, y.wait())
		p.same()
	})
}

func TestReleaseBeforeConnection(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	g := h.gate(b)
	require.NoError(t, a.LoadConn("bob", g.blob))
	p := &pair{a, b, a.memory(4096).fill(1), b.memory(4096).seenBy(a)}
	x, y := a.whole(transfer.Write, p.mine, p.theirs).post("x"), a.whole(transfer.Write, p.mine, p.theirs).post("y")
	x.release()
	require.Equal(t, 1, a.transfers.Len())
	g.open(true)
	require.Equal(t, done, y.wait())
	b.expect("ann:y")
}

// The peer closes. One transfer is idle, one is in flight, and the notification of one waits for room at the receiver.
func TestPeerCloses(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(8<<20, "notif_queue", "64KiB")
		x, y, idle := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
		idle.run()
		for full := 0; full < 20; time.Sleep(time.Millisecond) { // bob's engine takes notifications in and makes room for a while
			if full++; p.a.Notify("bob", make([]byte, 10_000)) == nil {
				full = 0
			}
		}
		if p.b.prov != nil {
			p.b.rail().Stall()
		}
		x.post("never taken")
		y.post()
		require.NoError(h, p.b.Close())
		x.fails(errcode.ErrRemoteDisconnect)
		if s := y.wait(); s != done {
			y.fails(errcode.ErrRemoteDisconnect)
		}
		require.Equal(h, done, idle.check(), "the status of an ended transfer stays")
		_, err := idle.Post()
		require.Equal(h, errcode.ErrRemoteDisconnect, errcode.StatusOf(err))
		require.Equal(h, errcode.ErrRemoteDisconnect, errcode.StatusOf(p.a.Notify("bob", nil)))
		x.release()
		y.release()
		idle.release()
		require.Zero(h, p.a.transfers.Len())
		require.NoError(h, p.a.Disconnect("bob"))
		require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(p.a.Notify("bob", nil)))
	})
}

// The control connection breaks without a goodbye, as when a process is killed. Each engine takes the other for dead. The same
// metadata loaded again makes a new session.
func TestPeerKilledAndLoadedAgain(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		a, b := h.agent("ann"), h.agent("bob")
		g := h.gate(b)
		g.open(true)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p := &pair{a, b, a.memory(1 << 20).fill(1), b.memory(1 << 20).seenBy(a)}
		x := a.whole(transfer.Write, p.mine, p.theirs)
		x.run()
		g.kill()
		until(h, "the initiator finds the loss", func() bool {
			_, err := x.Post()
			if err == nil {
				x.wait()
			}
			return errcode.StatusOf(err) == errcode.ErrRemoteDisconnect
		})
		until(h, "the target finds the loss", func() bool { return b.node.Stats().In == 0 })
		g.revive(h)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p.theirs = (&memory{owner: b, b: p.theirs.b, blob: p.theirs.blob}).seenBy(a)
		p.mine.fill(2)
		a.whole(transfer.Write, p.mine, p.theirs).run("again")
		b.expect("ann:again")
		p.same()
		require.Equal(h, errcode.ErrNotFound, func() errcode.Status { _, err := x.Post(); return errcode.StatusOf(err) }(), "a transfer of the old session")
		x.release()
	})
}

// Disconnect ends transfers that are in flight and transfers that wait, and forgets the peer. The peer can be loaded again.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(8 << 20)
		for i := range 5 {
			var all []*request
			for range 4 {
				all = append(all, p.a.whole(transfer.Write, p.mine, p.theirs).post("n"))
			}
			require.NoError(h, p.a.Disconnect("bob"))
			for _, x := range all {
				if s := x.wait(); s != done {
					x.fails(errcode.ErrBackend)
				}
				_, err := x.Post()
				require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(err))
				x.release()
			}
			require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(p.a.Disconnect("bob")))
			require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(p.a.Connect("bob")))
			require.NoError(h, p.a.LoadConn("bob", p.b.Conn()))
			p.theirs = p.theirs.seenBy(p.a)
			x := p.a.whole(transfer.Write, p.mine.fill(uint64(i)), p.theirs)
			x.run()
			x.release()
			p.same()
		}
		require.Zero(h, p.a.transfers.Len())
		until(h, "the target has one control connection", func() bool { return p.b.node.Stats().In == 1 })
	})
}

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
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
		require.Equal(h, status.ErrRepostActive, status.Of(err))
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

// The peer can't be reached. A post fails after connect_timeout, and the log names the option. The next post dials again.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann", "connect_timeout", "2s"), h.agent("bob")
	g := h.gate(b)
	require.NoError(t, a.LoadConn("bob", g.blob))
	mine, theirs := a.memory(4096), b.memory(4096).seenBy(a)
	x := a.whole(transfer.Write, mine, theirs).post()
	x.fails(status.ErrBackend)
	require.True(t, h.log.has("connects again", "bob", "connect_timeout"))
	until(t, "its connection has ended", func() bool { return a.node.Stats().Out == 0 })
	x.post().fails(status.ErrBackend)
	x.post()
	g.open(true)
	require.Equal(t, done, x.wait(), "a silent peer is not dead: the next post dials again")
	require.NoError(t, a.Notify("bob", []byte("n")))
	b.expect("ann:n")
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
		x.fails(status.ErrRemoteDisconnect)
		if s := y.wait(); s != done {
			y.fails(status.ErrRemoteDisconnect)
		}
		require.Equal(h, done, idle.check(), "the status of an ended transfer stays")
		_, err := idle.Post()
		require.Equal(h, status.ErrRemoteDisconnect, status.Of(err))
		require.Equal(h, status.ErrRemoteDisconnect, status.Of(p.a.Notify("bob", nil)))
		x.release()
		y.release()
		idle.release()
		require.Zero(h, p.a.transfers.Len())
		require.NoError(h, p.a.Disconnect("bob"))
		require.Equal(h, status.ErrNotFound, status.Of(p.a.Notify("bob", nil)))
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
			return status.Of(err) == status.ErrRemoteDisconnect
		})
		until(h, "the target finds the loss", func() bool { return b.node.Stats().In == 0 })
		g.revive(h)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p.theirs = (&memory{owner: b, b: p.theirs.b, blob: p.theirs.blob}).seenBy(a)
		p.mine.fill(2)
		a.whole(transfer.Write, p.mine, p.theirs).run("again")
		b.expect("ann:again")
		p.same()
		require.Equal(h, status.ErrNotFound, func() status.Code { _, err := x.Post(); return status.Of(err) }(), "a transfer of the old session")
		x.release()
	})
}

// The same metadata loaded again changes nothing, not even during a transfer.
func TestReload(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(1 << 20)
		x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
		for range 20 {
			x.post("n")
			require.NoError(h, p.a.LoadConn("bob", p.b.Conn()))
			require.Equal(h, p.theirs.md.region, p.theirs.seenBy(p.a).md.region)
			require.Equal(h, done, x.wait())
			p.b.expect("ann:n")
		}
		p.same()
		require.EqualValues(h, 1, p.a.node.Stats().Dialed)
	})
}

// A peer is started again under the same name.
func TestRestart(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(1 << 20)
		old := p.a.whole(transfer.Write, p.mine, p.theirs)
		old.run()
		for i := range 3 {
			if i != 1 { // once the new peer is loaded while the old one lives
				require.NoError(h, p.b.Close())
			}
			b := h.agent("bob")
			require.NoError(h, p.a.LoadConn("bob", b.Conn()))
			_, err := p.a.LoadRemote("bob", p.theirs.addr(), uint64(len(p.theirs.b)), 0, 0, p.theirs.blob)
			require.Equal(h, status.ErrMismatch, status.Of(err), "metadata of the old engine")
			q := &pair{p.a, b, p.mine.fill(uint64(i)), b.memory(1 << 20).seenBy(p.a)}
			p.a.whole(transfer.Write, q.mine, q.theirs).run("new")
			b.expect("ann:new")
			q.same()
			_, err = old.Post()
			require.Equal(h, status.ErrNotFound, status.Of(err))
			p = q
		}
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
					x.fails(status.ErrBackend)
				}
				_, err := x.Post()
				require.Equal(h, status.ErrNotFound, status.Of(err))
				x.release()
			}
			require.Equal(h, status.ErrNotFound, status.Of(p.a.Disconnect("bob")))
			require.Equal(h, status.ErrNotFound, status.Of(p.a.Connect("bob")))
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

func TestManyPeers(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	const n = 100
	hub := h.agent("hub")
	mine := hub.memory(64 << 10)
	var all []*request
	for i := range n {
		a := h.agent(fmt.Sprintf("p%d", i))
		loadBoth(hub, a)
		own := a.memory(4096).fill(uint64(i))
		back := mine.seenBy(a)
		off := i * 512
		all = append(all, a.prep(transfer.Write, []Desc{own.desc(0, 512)}, []Desc{back.desc(off, 512)}, "hub").post(fmt.Sprint(i)))
		all = append(all, hub.prep(transfer.Read, []Desc{mine.desc(off, 512)}, []Desc{own.seenBy(hub).desc(0, 512)}, a.name).post("r"))
	}
	for _, x := range all {
		require.Equal(t, done, x.wait())
	}
	until(t, "all notifications arrive", func() bool { return len(hub.take()) == n })
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("p%d:%d", i, i)
	}
	require.ElementsMatch(t, want, hub.got)
}

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/session"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// A session ends while the peer lives. The next post or notification begins another. Transfers, metadata and registrations stay
// valid.
func TestConnectsAgain(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(1 << 20)
		x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
		x.run("0")
		p.b.expect("ann:0")
		r := p.a.connected("bob")
		for i := range 5 {
			p.mine.fill(uint64(i))
			x.post("lost or not")
			r.fail("out of descriptors, for once")
			if s := x.wait(); s != done {
				x.fails(errcode.ErrBackend)
			}
			switch i % 3 { // a post, a notification or Connect begins the next session
			case 0:
				x.run("again")
			case 1:
				require.NoError(h, p.a.Notify("bob", []byte("again")))
				x.run()
			case 2:
				require.NoError(h, p.a.Connect("bob"))
				y.run("again")
				x.run()
			}
			until(h, "the notification arrives", func() bool { return strings.HasSuffix(strings.Join(p.b.take(), " "), "ann:again") })
			p.b.got = nil
			p.same()
			more := p.a.memory(4096).fill(uint64(i))
			theirs := p.b.memory(4096).seenBy(p.a)
			p.a.whole(transfer.Write, more, theirs).run()
			require.Equal(h, string(more.b), string(theirs.b))
		}
		require.Same(h, r.Initiator, p.a.remote("bob").Initiator, "the application has loaded nothing again")
		require.EqualValues(h, 6, p.a.node.Stats().Dialed)
		until(h, "the target has one control connection", func() bool { return p.b.node.Stats().In == 1 })
	})
}

// A loopback session that has ended begins again, too.
func TestConnectsAgainToItself(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		a := h.agent("ann")
		m := a.memory(1 << 20).fill(1)
		other := a.memory(1 << 20).seenBy(a)
		x := a.whole(transfer.Write, m, other)
		x.run("0")
		a.expect("ann:0")
		for i := range 5 {
			a.connected("ann").fail("out of descriptors, for once")
			m.fill(uint64(i))
			x.run("x")
			require.NoError(h, a.Notify("ann", []byte("n")))
			a.expect("ann:x", "ann:n")
			require.True(h, string(m.b) == string(other.b))
		}
	})
}

// Nothing comes through the control channel for five times peer_timeout, but the peer's host acknowledges. Transfers posted
// before and meanwhile end well.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		a, b := h.agent("ann", "peer_timeout", "200ms"), h.agent("bob", "peer_timeout", "200ms")
		g := h.gate(b)
		g.open(true)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p := &pair{a, b, a.memory(1 << 20).fill(1), b.memory(1 << 20).seenBy(a)}
		x := a.whole(transfer.Write, p.mine, p.theirs)
		x.run()
		g.open(false)
		silence := time.Now().Add(time.Second)
		late := b.memory(4096).seenBy(a) // the request for its keys is not answered
		y := a.whole(transfer.Write, p.mine, late).post("y")
		for time.Now().Before(silence) {
			x.run()
		}
		g.open(true)
		require.Equal(h, done, y.wait())
		b.expect("ann:y")
		require.EqualValues(h, 1, a.node.Stats().Dialed)
	})
}

// Accepted notifications arrive even if the application disconnects at once. They arrive in the order of the sessions.
func TestDisconnectDelivers(t *testing.T) {
	t.Parallel()
	const rounds = 60
	everywhere(t, func(h *harness) {
		p := h.pair(256 << 10)
		var want []string
		next := func() string {
			want = append(want, fmt.Sprint("ann:", len(want)))
			return strings.TrimPrefix(want[len(want)-1], "ann:")
		}
		for i := range rounds {
			switch i % 4 {
			case 0, 1:
				x := p.a.whole([]int{transfer.Write, transfer.Read}[i%2], p.mine, p.theirs)
				x.run(next())
				x.release()
			case 2: // before there is a connection
				require.NoError(h, p.a.Notify("bob", []byte(next())))
			case 3:
				p.a.connected("bob")
				for range 50 {
					require.NoError(h, p.a.Notify("bob", []byte(next())))
				}
			}
			require.NoError(h, p.a.Disconnect("bob"))
			require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(p.a.Notify("bob", nil)))
			require.NoError(h, p.a.LoadConn("bob", p.b.Conn()))
			p.theirs = p.theirs.seenBy(p.a)
		}
		p.b.expect(want...)
		until(h, "the older sessions end", func() bool { return p.b.node.Stats().In <= 1 && p.a.initiators.Leaving() == 0 })
	})
}

// The peer's fabric hangs, and notifications wait. Disconnect returns at once. The session ends, and the log says that
// notifications may be lost.
func TestDisconnectIsBounded(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096, "peer_timeout", "300ms")
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	p.b.rail().Stall()
	for range 200 {
		require.NoError(t, p.a.Notify("bob", make([]byte, 1000)))
	}
	start := time.Now()
	require.NoError(t, p.a.Disconnect("bob"))
	require.Less(t, time.Since(start), 100*time.Millisecond)
	until(t, "the session ends", func() bool { return p.a.initiators.Leaving() == 0 })
	require.True(t, h.log.has("level=WARN", "last notifications", "bob"), "the log says what may be lost")
	p.b.rail().Release()
}

// An event of one peer takes long. Events and deadlines of another peer are handled meanwhile.
func TestBlockedPeer(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b, c := h.agent("ann", "xfer_timeout", "5s", "cancel_timeout", "100ms"), h.agent("bob"), h.agent("eve")
	loadBoth(a, b)
	loadBoth(a, c)
	mine, theirs, others := a.memory(64<<10), b.memory(64<<10).seenBy(a), c.memory(64<<10).seenBy(a)
	a.whole(transfer.Write, mine, theirs).run()
	a.whole(transfer.Write, mine, others).run()
	r := a.connected("bob")
	a.rail().Stall()
	x, y := a.whole(transfer.Write, mine, theirs).post(), a.whole(transfer.Write, mine, others).post()
	r.Inspect(func(in session.Inside) { // its lock is held, as by a fence whose endpoint does not close
		start := time.Now()
		a.onEvent(core.Event{Kind: core.EvLink, ID: in.Links[0].ID, Code: 5})
		require.Less(t, time.Since(start), time.Second, "the goroutine of events does not wait")
		y.fails(errcode.ErrBackend) // its deadline is kept
		require.Equal(t, inProg, x.check())
	})
	x.wait()
	a.rail().Release()
}

// A session ends while one of its links backs off. The link's timer does not affect the next session.
func TestRestingLinkOfLostSession(t *testing.T) {
	t.Parallel()
	h := onRails(t, 3, fake.TCPCaps())
	p := h.pair(4096)
	p.allUp(3)
	p.a.railChanged("fake1", false)
	settled(p.a, p.a.connected("bob"))
	until(t, "the link backs off", func() bool {
		return p.a.remote("bob").count(func(l *session.Link) bool { return l.Num == 1 && l.Phase == session.BackingOff }) == 1
	})
	p.a.remote("bob").fail("out of descriptors, for once")
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
	for end := time.Now().Add(2 * session.FirstBackoff); time.Now().Before(end); { // until the timer has fired
		p.a.whole(transfer.Write, p.mine, p.theirs).run()
	}
	p.same()
}

// The data of a transfer is in place, and its notification waits. The target deregisters the memory. The transfer's deadline
// still holds for the notification.
func TestDeadlineBehindTakenMemory(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096, "notif_queue", "64KiB", "xfer_timeout", "3s", "cancel_timeout", "10s")
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	for full := 0; full < 20; time.Sleep(time.Millisecond) { // bob's engine takes notifications in and makes room for a while
		if full++; p.a.Notify("bob", make([]byte, 10_000)) == nil {
			full = 0
		}
	}
	p.b.rail().Stall()
	x := p.a.whole(transfer.Write, p.mine, p.theirs).post("never taken")
	r := p.a.remote("bob")
	own := ownID(p)
	over := make(chan error, 1)
	go func() { over <- p.b.Deregister(own) }()
	until(t, "the revocation is under way", func() bool { return r.inside().Revoking > 0 })
	p.b.rail().Release()
	require.NoError(t, <-over)
	require.NotEqual(t, inProg, x.wait())
	x.release()
}

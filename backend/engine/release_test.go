package engine

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/session"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// released waits until all of the agent's released transfers are freed.
func (a *agent) released() {
	a.t.Helper()
	until(a.t, "all released transfers are freed", func() bool { a.take(); return a.transfers.Len() == 0 && a.transfers.ActiveLen() == 0 })
}

// The peer's fabric hangs. Release waits for release_wait and returns. The released transfer is freed when the fabric goes on.
func TestReleaseStalled(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1<<20, "release_wait", "20ms", "cancel_timeout", "10m")
		warm := p.a.whole(transfer.Write, p.mine, p.theirs)
		warm.run()
		p.b.rail().Stall()
		x, y := p.a.whole(transfer.Write, p.mine, p.theirs).post("x"), p.a.whole(transfer.Read, p.mine, p.theirs).post("y")
		until(h, "something is in flight", func() bool { x.check(); return p.a.connected("bob").links()[0].Core.Stats().InflightOps > 0 })
		start := time.Now()
		x.release()
		y.release()
		require.Less(h, time.Since(start), patience)
		require.Equal(h, 2, p.a.transfers.Len(), "the transfer with nothing posted is freed; the other drains")
		p.b.rail().Release()
		until(h, "the released transfer is freed", func() bool { return p.a.transfers.Len() == 1 })
		warm.run("z")
		p.b.expect("ann:z")
	})
}

// A READ hangs and is released. It writes nothing after the release. Only its link is fenced, and other transfers of that link go
// on.
func TestReleaseReadStalled(t *testing.T) {
	t.Parallel()
	h := onLinks(t, 3, fake.TCPCaps())
	p := h.pair(1<<20, "release_wait", "1ms", "cancel_timeout", "10m")
	r := p.a.connected("bob")
	until(h, "all links work", func() bool {
		return r.count(func(l *session.Link) bool { return l.Phase != session.Working }) == 0
	})
	p.theirs.fill(1)
	p.b.rail().Stall()
	part := func(op, at, n int) *request {
		return p.a.prep(op, []Desc{p.mine.desc(at, n)}, []Desc{p.theirs.desc(at, n)}, "bob").post()
	}
	x := part(transfer.Read, 0, 64<<10).posted()
	var beside []*request
	for i := range 5 {
		beside = append(beside, part(transfer.Read, 512<<10+i*64<<10, 64<<10).posted())
	}
	x.release()
	p.b.rail().Release()
	for _, y := range beside {
		require.Equal(h, done, y.wait())
	}
	until(h, "the released transfer is freed", func() bool { return p.a.transfers.Len() == len(beside) })
	require.Equal(h, make([]byte, 64<<10), p.mine.b[:64<<10], "the READ was released before its bytes came")
	require.True(h, string(p.mine.b[512<<10:832<<10]) == string(p.theirs.b[512<<10:832<<10]))
	require.Equal(h, 1, r.count(func(l *session.Link) bool { return l.Epoch > 0 }), "one link is fenced")
}

// A READ hangs on a shared endpoint. Its first release is refused. It can't be posted until it has ended. The second release
// succeeds.
func TestReleaseReadShared(t *testing.T) {
	t.Parallel()
	caps := fake.EFACaps()
	caps.SharedEndpoint = true
	h := onFake(t, caps)
	p := h.pair(1<<20, "release_wait", "1ms", "cancel_timeout", "20ms")
	p.theirs.fill(1)
	warm := p.a.whole(transfer.Read, p.mine, p.theirs)
	warm.run()
	for i := range 3 {
		p.b.rail().Stall()
		x := p.a.whole(transfer.Read, p.mine, p.theirs).post().posted()
		require.Equal(h, errcode.ErrRepostActive, errcode.StatusOf(p.a.Release(x.handle)))
		_, err := x.Post()
		require.Equal(h, errcode.ErrRepostActive, errcode.StatusOf(err))
		switch i {
		case 0: // it ends before the second release
			p.b.rail().Release()
			x.fails(errcode.ErrCanceled)
		case 1: // it ends and is posted again, and its release is refused again
			p.b.rail().Release()
			x.fails(errcode.ErrCanceled)
			p.b.rail().Stall()
			x.post().posted()
			require.Equal(h, errcode.ErrRepostActive, errcode.StatusOf(p.a.Release(x.handle)))
		}
		start := time.Now()
		x.release()
		require.Less(h, time.Since(start), time.Second)
		p.b.rail().Release()
		until(h, "the released transfer is freed", func() bool { return p.a.transfers.Len() == 1 })
		warm.run()
		p.same()
	}
}

// The peer's fabric hangs, and its control channel works. The link of a released transfer is fenced after cancel_timeout, and
// works again.
func TestZombieFenced(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1<<20, "release_wait", "0", "cancel_timeout", "50ms")
		warm := p.a.whole(transfer.Write, p.mine, p.theirs)
		warm.run("w")
		p.b.expect("ann:w")
		p.b.rail().Stall()
		x := p.a.whole(transfer.Write, p.mine, p.theirs).post("x")
		until(h, "something is in flight", func() bool { x.check(); return p.a.connected("bob").links()[0].Core.Stats().InflightOps > 0 })
		x.release()
		until(h, "the released transfer is freed", func() bool { return p.a.transfers.Len() == 1 })
		p.b.rail().Release()
		until(h, "the fence is logged", func() bool { return h.log.has("fencing a link", "bob", "cancel_timeout") })
		p.mine.fill(5)
		warm.run("again")
		p.b.expect("ann:again")
		p.same()
	})
}

// The target deregisters its memory while the transfer hangs. The initiator answers the revocation only after the link's drain.
// The target waits for cancel_timeout and then closes its endpoint.
func TestDeregisterAtTargetStalled(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1<<20, "cancel_timeout", "100ms")
		warm := p.a.whole(transfer.Write, p.mine, p.theirs)
		warm.run()
		p.b.rail().Stall()
		x := p.a.whole(transfer.Write, p.mine.fill(3), p.theirs).post("x")
		until(h, "something is in flight", func() bool { x.check(); return p.a.connected("bob").links()[0].Core.Stats().InflightOps > 0 })
		start := time.Now()
		require.NoError(h, p.b.Deregister(ownID(p)))
		require.Less(h, time.Since(start), patience)
		before := string(p.theirs.b)
		p.b.rail().Release()
		require.Negative(h, x.wait())
		require.True(h, before == string(p.theirs.b), "no WRITE lands late")
	})
}

// ownID is the target's number of the region of p.theirs.
func ownID(p *pair) uint64 {
	for _, r := range p.b.regions.All() {
		if r.Addr == p.theirs.addr() {
			return r.ID
		}
	}
	return 0
}

// The initiator deregisters memory. Its transfers over that memory end, and other transfers go on.
func TestDeregisterAtInitiator(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(8 << 20)
		for i := range 6 {
			m, keep := p.a.memory(8<<20), p.a.whole(transfer.Read, p.mine, p.theirs)
			x := p.a.whole(transfer.Read, m, p.theirs).post("n")
			keep.post()
			for range i * 4 {
				x.check()
			}
			require.NoError(h, p.a.Deregister(m.md.region))
			after := string(m.b)
			s := x.wait()
			require.True(h, after == string(m.b), "the memory has changed after its deregistration")
			if s != done {
				x.fails(errcode.ErrBackend)
			}
			require.Equal(h, done, keep.wait())
			require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(p.a.Deregister(m.md.region)))
			x.post().fails(errcode.ErrBackend)
			x.release()
			_, _, err := p.a.Prep(transfer.Read, []Desc{m.desc(0, 8)}, []Desc{p.theirs.desc(0, 8)}, "bob")
			require.Equal(h, errcode.ErrNotFound, errcode.StatusOf(err))
			keep.release()
		}
		require.Zero(h, p.a.transfers.Len())
		p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run()
		p.same()
	})
}

// The peer's fabric hangs, and the initiator deregisters memory. After cancel_timeout it closes its endpoint, so nothing changes the
// memory after the call.
func TestDeregisterAtInitiatorStalled(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1<<20, "cancel_timeout", "50ms")
		warm := p.a.whole(transfer.Write, p.mine, p.theirs)
		warm.run()
		m := p.a.memory(1 << 20)
		p.b.rail().Stall()
		x := p.a.whole(transfer.Read, m, p.theirs.fill(1)).post("x")
		until(h, "something is in flight", func() bool { x.check(); return p.a.connected("bob").links()[0].Core.Stats().InflightOps > 0 })
		start := time.Now()
		require.NoError(h, p.a.Deregister(m.md.region))
		require.Less(h, time.Since(start), patience)
		before := string(m.b)
		p.b.rail().Release()
		x.fails(errcode.ErrBackend)
		warm.run("w")
		p.b.expect("ann:w")
		require.True(h, before == string(m.b))
	})
}

// The close of an endpoint may take seconds, under the session's lock and in its queue of events. Deadlines do not wait for it: a transfer
// with nothing posted has its status meanwhile.
func TestDeadlineBehindClose(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(1<<20, "xfer_timeout", "300ms", "cancel_timeout", "50ms", "window_max", "64KiB", "window_min", "64KiB")
	p.a.connected("bob")
	first := p.a.whole(transfer.Write, p.mine, p.theirs) // has the keys: the post under the lock below waits for none
	first.run()
	first.release()
	p.b.rail().Stall()
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).post() // fills the window
	held, release := make(chan struct{}), make(chan struct{})
	closed := sync.OnceFunc(func() { close(release) })
	defer closed()
	r := p.a.remote("bob")
	r.Peer().Events.Do(&p.a.life, func() {
		r.Inspect(func(session.Inside) {
			close(held)
			<-release
		})
	})
	<-held
	y := p.a.whole(transfer.Write, p.mine, p.theirs)
	y.post()
	y.fails(errcode.ErrBackend)
	require.Equal(t, inProg, x.check(), "its operations are posted")
	until(t, "both are reported", func() bool { return strings.Count(h.log.String(), "transfer timed out") == 2 })
	closed()
	x.fails(errcode.ErrBackend)
	p.b.rail().Release()
	x.run("y")
	p.b.expect("ann:y")
	p.same()
}

// The bytes of a transfer are in place, but the receiver has no room for its long notification. The transfer fails after
// xfer_timeout. The notification arrives at most once. Later transfers succeed.
func TestDeadlineOfNotification(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(64<<10, "xfer_timeout", "500ms", "notif_queue", "64KiB", "release_wait", "0")
		require.NoError(h, p.a.Notify("bob", body(70<<10, 0)))
		until(h, "the first notification arrives", func() bool { return p.b.core.Counters()["notifs_received"] == 1 })
		text := string(body(1<<20, 1))
		x, y := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs), p.a.whole(transfer.Write, p.mine, p.theirs)
		x.post(text)
		y.post("y")
		x.fails(errcode.ErrBackend)
		require.True(h, h.log.has("transfer timed out", "bob", "0 of 65536 bytes left"))
		if s := y.wait(); s != done {
			y.fails(errcode.ErrBackend)
		}
		p.same()
		x.release()
		y.release()
		require.Zero(h, p.a.transfers.Len())
		z := p.a.whole(transfer.Read, p.mine, p.theirs)
		until(h, "the last notification arrives", func() bool {
			if z.check() != inProg {
				z.post("z") // on a busy host it may miss its deadline
			}
			got := p.b.take()
			return len(got) > 0 && got[len(got)-1] == "ann:z"
		})
		until(h, "the last transfer ends well", func() bool { return z.wait() == done || z.post("z").wait() == done })
		long := 0
		for _, s := range p.b.got {
			if s == "ann:"+text {
				long++
			}
		}
		require.LessOrEqual(h, long, 1)
	})
}

// A slow transfer that makes progress may take longer than xfer_timeout.
func TestNoDeadlineWhileMoving(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	const deadline = 2 * time.Second // twenty times the length of a stall
	p := h.pair(1<<20, "xfer_timeout", deadline.String(), "window_max", "64KiB", "window_min", "64KiB")
	p.a.connected("bob")
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).post()
	start := time.Now()
	for stall := deadline / 20; time.Since(start) < deadline*5/4; { // stalls and goes on
		p.b.rail().Stall()
		time.Sleep(stall)
		p.b.rail().Release()
		before := p.a.core.Counters()["completions"]
		until(t, "the transfer makes progress", func() bool { return x.check() != inProg || p.a.core.Counters()["completions"] > before })
	}
	require.Equal(t, done, x.wait())
	p.same()
}

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// gated is a pair with an open gate before b.
func (h *harness) gated(n int, params ...string) (*pair, *gate) {
	h.Helper()
	p := &pair{a: h.agent("ann", params...), b: h.agent("bob", params...)}
	g := h.gate(p.b)
	g.open(true)
	require.NoError(h, p.a.LoadConn("bob", g.blob))
	p.mine, p.theirs = p.a.memory(n), p.b.memory(n).seenBy(p.a)
	return p, g
}

// still requires that the buffers do not change for 50 ms.
func still(h *harness, p *pair) {
	h.Helper()
	mine, theirs := string(p.mine.b), string(p.theirs.b)
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		require.True(h, mine == string(p.mine.b) && theirs == string(p.theirs.b), "memory has changed after the end of the transfer")
	}
}

// causes end a transfer to a peer whose fabric hangs.
var causes = map[string]struct {
	code  errcode.Status
	cause func(h *harness, p *pair, x *request)
}{
	"deadline": {errcode.ErrBackend, func(h *harness, p *pair, x *request) {
		until(h, "the link is fenced", func() bool { return h.log.has("fencing a link", "bob", "cancel_timeout") })
	}},
	"our deregistration": {errcode.ErrBackend, func(h *harness, p *pair, x *request) {
		start := time.Now()
		require.NoError(h, p.a.Deregister(p.mine.md.region))
		require.Less(h, time.Since(start), time.Second, "the initiator waits for itself alone")
	}},
	"disconnect": {errcode.ErrBackend, func(h *harness, p *pair, x *request) {
		r := p.a.remote("bob")
		require.NoError(h, p.a.Disconnect("bob"))
		r.dropped(h)
	}},
	"new metadata": {errcode.ErrBackend, func(h *harness, p *pair, x *request) {
		r := p.a.remote("bob")
		// The new gate is shut. The target must not hear of the new session, because it would close the old session's endpoints.
		require.NoError(h, p.a.LoadConn("bob", h.gate(p.b).blob))
		r.dropped(h)
	}},
	"a failure of ours": {errcode.ErrBackend, func(h *harness, p *pair, x *request) { p.a.remote("bob").fail("test") }},
}

// WRITEs land after their initiator has closed its endpoint, as on tcp. The peer gets the fence late. The transfer stays in
// progress until its WRITEs can't land any more. A READ may end as soon as its endpoint is closed here: nothing lands after that.
func TestStatusWaitsForFence(t *testing.T) {
	t.Parallel()
	for name, c := range causes {
		for op := range 2 {
			t.Run(fmt.Sprint(name, " ", op), func(t *testing.T) {
				h := onFake(t, fake.TCPCaps())
				p, g := h.gated(256<<10, "xfer_timeout", "600ms", "cancel_timeout", "50ms")
				p.a.connected("bob") // connect first, because xfer_timeout is short
				p.a.whole(op, p.mine, p.theirs).run()
				p.a.rail().Script(fake.Script{LateLanding: true})
				p.mine.fill(1)
				p.b.rail().Stall()
				x := p.a.whole(op, p.mine, p.theirs).post().posted()
				before, mine := string(p.theirs.b), string(p.mine.b)
				g.open(false)
				c.cause(h, p, x)
				early := x.check()
				p.b.rail().Release()
				if op == transfer.Write {
					until(h, "the WRITE lands", func() bool { return before != string(p.theirs.b) })
				}
				if op == transfer.Write {
					require.Equal(h, inProg, early, "the transfer has ended before the fence")
					require.Equal(h, inProg, x.check())
				}
				require.True(h, op == transfer.Write || mine == string(p.mine.b), "a READ has changed memory")
				g.open(true)
				x.fails(c.code)
				still(h, p)
			})
		}
	}
}

// The peer never answers the fence. The end of the session bounds the wait.
func TestStatusWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range causes {
		t.Run(name, func(t *testing.T) {
			h := onFake(t, fake.TCPCaps())
			p, g := h.gated(64<<10, "xfer_timeout", "600ms", "cancel_timeout", "50ms", "peer_timeout", "400ms")
			p.a.connected("bob")
			p.b.rail().Stall()
			x := p.a.whole(transfer.Write, p.mine, p.theirs).post().posted()
			g.open(false)
			c.cause(h, p, x)
			require.Negative(h, x.wait())
			p.b.rail().Release()
			g.open(true)
		})
	}
}

// The target deregisters a buffer during two transfers. One is posted completely and ends well. The other is posted in part and
// fails, with NIXL_ERR_REMOTE_DISCONNECT if the target closes.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		for _, leaves := range []bool{false, true} {
			p := h.pair(4<<20, "window_max", "64KiB")
			p.a.whole(transfer.Write, p.mine, p.theirs).run()
			p.b.rail().Stall()
			whole := p.a.prep(transfer.Write, []Desc{p.mine.fill(7).desc(0, 4096)}, []Desc{p.theirs.desc(0, 4096)}, "bob").post("n").posted()
			part := p.a.whole(transfer.Read, p.mine, p.theirs).post("never")
			own, over := ownID(p), make(chan error)
			go func() { over <- p.b.Deregister(own) }()
			until(h, "the revocation is under way", func() bool { return p.a.remote("bob").inside().Revoking > 0 })
			p.b.rail().Release()
			require.NoError(h, <-over)
			require.Equal(h, done, whole.wait())
			require.True(h, string(p.mine.b[:4096]) == string(p.theirs.b[:4096]))
			if leaves {
				require.NoError(h, p.b.Close())
				part.fails(errcode.ErrRemoteDisconnect)
				continue
			}
			part.fails(errcode.ErrBackend)
			p.b.expect("ann:n")
			part.post().fails(errcode.ErrBackend) // the target no longer knows the region
			require.NoError(h, p.a.Close())
			require.NoError(h, p.b.Close())
		}
	})
}

// NIXL's agent unloads a range that a prepared transfer uses. The transfer keeps the keys until the target deregisters the memory.
// Deregistration waits for the transfer. Later posts fail and write nothing, even if the range has been loaded again.
func TestUnloadedThenRevoked(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"gone": false, "loaded again": true} {
		t.Run(name, func(t *testing.T) {
			onFakes(t, func(h *harness) {
				p := h.pair(1<<20, "cancel_timeout", "10s")
				own := ownID(p)
				x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
				x.run()
				require.NoError(h, p.a.UnloadRemote(p.theirs.md.region))
				x.run() // the transfer keeps the keys
				if again {
					other := p.theirs.seenBy(p.a)
					y := p.a.whole(transfer.Write, p.mine.fill(2), other)
					y.run()
					y.release()
				}
				p.b.rail().Stall()
				x.post()
				p.a.connected("bob").inFlight(x)
				gone := make(chan error)
				go func() { gone <- p.b.Deregister(own) }()
				select {
				case err := <-gone:
					h.Error("Deregister did not wait for the transfer in flight: ", err)
				case <-time.After(50 * time.Millisecond):
				}
				p.b.rail().Release()
				if !h.Failed() {
					require.NoError(h, <-gone)
				}
				x.wait()
				before := string(p.theirs.b)
				p.mine.fill(3)
				if _, err := x.Post(); err == nil {
					x.fails(errcode.ErrBackend)
				}
				require.True(h, before == string(p.theirs.b))
			})
		})
	}
}

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
		x.fails(errcode.ErrBackend)
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

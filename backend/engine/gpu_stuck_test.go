package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// stuck is where memory is that a GPU stops copying: the number of a GPU, or -1.
type stuck struct {
	on        func(t testing.TB) *harness
	here, far int
	mapping   bool // memory is still being mapped, for two seconds
}

// byRails are the rails that copy memory of GPUs by themselves. Over tcp the copy at the other end would be the one that does not end.
var byRails = map[string]stuck{"sm": {on: onHost, here: 0, far: 1}, "tcp": {on: onTCP, here: 0, far: -1}}

// staged are the sides that copy between bounce buffers and memory of GPUs.
var stagedAt = map[string]stuck{"initiator": {on: onHost, here: 0, far: -1}, "target": {on: onHost, here: -1, far: 1}, "both, tcp": {on: onTCP, here: 0, far: 1},
	"both": {on: onHost, here: 0, far: 1, mapping: true}}

// stuckGPUs runs body in each case. The first transfer has ended, and from then on GPUs do no work.
func stuckGPUs(t *testing.T, cases map[string]stuck, body func(h *harness, g *gpus, a, b *agent, mine, theirs *block)) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := c.on(t)
			g := h.withGPUs()
			if c.mapping {
				g.lib.Set("slow_import", 2_000_000)
			}
			a, b := h.agent("ann", "xfer_timeout", "2s", "cancel_timeout", "500ms"), h.agent("bob", "cancel_timeout", "5s")
			loadBoth(a, b)
			mine, theirs := g.block(a, c.here, 64<<10), g.block(b, c.far, 64<<10)
			mine.fill(1)
			first := a.whole2(transfer.Write, mine, theirs.seenBy(a)).post()
			require.Equal(t, done, first.wait())
			first.release()
			g.lib.Set("hold", 1)
			t.Cleanup(func() { g.lib.Set("hold", 0) })
			body(h, g, a, b, mine, theirs)
		})
	}
}

// A GPU that never ends a copy holds up no close: neither of the endpoint nor of the engine.
func TestStuckGPUEngineCloses(t *testing.T) {
	t.Parallel()
	stuckGPUs(t, byRails, func(h *harness, g *gpus, a, b *agent, mine, theirs *block) {
		closeStuck(h, g, a, b, mine, theirs)
		require.True(h, h.log.has("closing an endpoint failed", "peer=bob", "GPU 0 has not ended a copy"), h.log)
	})
}

// The same for copies to and from bounce buffers.
func TestStuckStagingEngineCloses(t *testing.T) {
	t.Parallel()
	stuckGPUs(t, stagedAt, closeStuck)
}

// The same once the engine has mapped a peer's memory: the driver frees what belongs to mappings after all work of the GPU, also that
// of others. The log names what stays.
func TestStuckGPUMappedEngineCloses(t *testing.T) {
	t.Parallel()
	after := map[string]stuck{"a staged copy": {on: onHost, here: 0, far: -1}}
	stuckGPUs(t, after, func(h *harness, g *gpus, a, b *agent, mine, theirs *block) {
		g.lib.Set("hold", 0)
		near, far := g.block(a, 0, 64<<10), g.block(b, 1, 64<<10)
		h.Cleanup(func() { g.lib.Set("hold", 0) }) // before they are freed
		seen := far.seenBy(a)
		until(h, "a's GPU copies directly", func() bool {
			before := a.Engine.staging.Counts().Transfers
			x := a.whole2(transfer.Write, near, seen).post()
			require.Equal(h, done, x.wait())
			x.release()
			return a.Engine.staging.Counts().Transfers == before
		})
		g.lib.Set("hold", 1)
		closeStuck(h, g, a, b, mine, theirs)
		require.True(h, h.log.has("not freed at the end of the engine", "stays=\"rail sm/"), h.log)
	})
}

// The deregistrations of many regions, as an agent's end makes them, together wait for a GPU about as long as one.
func TestStuckGPUDeregistersMany(t *testing.T) {
	t.Parallel()
	const regions, most = 48, 30 * time.Second // a second each, at least, would be 48
	cases := map[string]stuck{"sm": byRails["sm"], "tcp": byRails["tcp"], "staged": stagedAt["initiator"]}
	stuckGPUs(t, cases, func(h *harness, g *gpus, a, b *agent, _, theirs *block) {
		g.lib.Set("hold", 0)
		var list []*block
		var here, there []Desc
		seen := theirs.seenBy(a)
		for range regions {
			l := g.block(a, 0, 2<<10)
			list, here, there = append(list, l), append(here, l.desc(0, l.n)), append(there, seen.desc(0, l.n))
		}
		h.Cleanup(func() { g.lib.Set("hold", 0) }) // before they are freed
		all := a.prep(transfer.Read, here, there, "bob").post()
		require.Equal(h, done, all.wait())
		g.lib.Set("hold", 1)
		g.lib.Leave()
		before := g.lib.Count("copies") + g.lib.Count("launches")
		_, err := all.Post()
		require.NoError(h, err)
		until(h, "the GPU has work", func() bool { return g.lib.Count("copies")+g.lib.Count("launches") > before })
		begin := time.Now()
		for _, l := range list {
			require.Error(h, a.Deregister(l.md.region), "the GPU may still write there")
		}
		require.Less(h, time.Since(begin), most)
		require.NoError(h, a.Close())
		require.NoError(h, b.Close())
	})
}

// closeStuck closes both engines with copies that do not end.
func closeStuck(h *harness, g *gpus, a, b *agent, mine, theirs *block) {
	g.lib.Leave()
	before := g.lib.Count("copies") + g.lib.Count("launches")
	a.whole2(transfer.Write, mine, theirs.seenBy(a)).post()
	a.whole2(transfer.Read, mine, theirs.seenBy(a)).post()
	until(h, "the GPU has work", func() bool { return g.lib.Count("copies")+g.lib.Count("launches") > before })
	closeInTime(h, a, b)
}

// closeInTime closes both engines, which must not wait for a GPU or its driver.
func closeInTime(h *harness, a, b *agent) {
	closed := make(chan error, 2)
	go func() {
		closed <- a.Close()
		closed <- b.Close()
	}()
	for range 2 {
		select {
		case err := <-closed:
			require.NoError(h, err)
		case <-time.After(patience):
			require.Fail(h, "the engine's close waits for the GPU")
		}
	}
}

// The status of a transfer waits for a GPU that ends neither its copy nor the cancel. Other sessions go on. Its memory cannot be
// deregistered in silence. Once the copy has ended, all is as before.
func TestStuckGPUEnds(t *testing.T) {
	t.Parallel()
	stuckGPUs(t, byRails, func(h *harness, g *gpus, a, b *agent, mine, theirs *block) {
		read := a.whole2(transfer.Read, mine, theirs.seenBy(a)).post()
		until(h, "the endpoint is closed", func() bool {
			return h.log.has("closing an endpoint failed", "peer=bob", "GPU 0 has not ended a copy")
		})
		host, other := g.block(a, -1, 4096), g.block(b, -1, 4096)
		host.fill(2)
		moves := a.whole2(transfer.Write, host, other.seenBy(a)).post()
		require.Equal(h, done, moves.wait(), "host memory moves meanwhile")
		moves.release()
		pattern.Same(h, host.bytes(), other.bytes())
		require.Equal(h, 1, read.check(), "the GPU may still write: the READ has not ended")
		require.Error(h, a.Release(read.handle), "a READ that may write is not released at once")
		require.Error(h, a.Deregister(mine.md.region))
		if h.host {
			require.Error(h, b.Deregister(theirs.md.region), "the peer's GPU may still access it")
		}
		require.Equal(h, 1, read.check())
		g.lib.Set("hold", 0)
		read.fails(errcode.ErrBackend)
		read.release()
	})
}

// A GPU copies between memory of its own and host memory of the same agent, and does not end. Neither memory is deregistered in silence,
// whichever is the remote side.
func TestStuckGPUWithin(t *testing.T) {
	t.Parallel()
	for op, name := range []string{transfer.Write: "WRITE", transfer.Read: "READ"} {
		for _, remote := range []int{-1, 0} {
			t.Run(fmt.Sprint(name, ", remote ", remote), func(t *testing.T) {
				t.Parallel()
				h := onHost(t)
				g := h.withGPUs()
				g.lib.Leave() // memory whose deregistration fails stays pinned
				a := h.agent("ann", "xfer_timeout", "2s", "cancel_timeout", "500ms")
				require.NoError(t, a.LoadConn("ann", a.Conn()))
				mine, theirs := g.block(a, -1-remote, 64<<10), g.block(a, remote, 64<<10)
				first := a.whole2(op, mine, theirs.seenBy(a)).post()
				require.Equal(t, done, first.wait())
				first.release()
				g.lib.Set("hold", 1)
				t.Cleanup(func() { g.lib.Set("hold", 0) })
				before := g.lib.Count("copies") + g.lib.Count("launches")
				x := a.whole2(op, mine, theirs.seenBy(a)).post()
				until(t, "the GPU has work", func() bool { return g.lib.Count("copies")+g.lib.Count("launches") > before })
				require.Error(t, a.Deregister(theirs.md.region), "the GPU may still access it")
				require.Error(t, a.Deregister(mine.md.region))
				g.lib.Set("hold", 0)
				require.NotEqual(t, done, x.wait())
				x.release()
			})
		}
	}
}

package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/fake"
)

// numbers fills memory of a GPU with bfloat16.
func (b *block) numbers(seed uint64) {
	in := make([]byte, b.n)
	pattern.Fill(in, seed|pattern.Floats, 0)
	b.gpus.Write(b.dev, b.addr, in)
}

// withPacking gives the harness GPUs and bounce buffers of 512 KiB.
func (h *harness) withPacking() *gpus {
	g := h.withGPUs()
	h.params = append(h.params, "stage_size", "8MiB")
	return g
}

// wireBytes are the bytes that the agent's own WRITEs and READs have moved over rails.
func (a *agent) wireBytes() (n uint64) {
	s := a.snapshot()
	for i := range s.Rails {
		n += s.Rails[i].BytesWritten + s.Rails[i].BytesRead
	}
	return n
}

// TestStagePacked moves numbers between GPUs, with all pairs of option compression: packed if both sides have it, with the bytes on the rails and
// the counters of the side that packs; in clear otherwise. Small chunks, random bytes and host memory go in clear.
func TestStagePacked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		here, there string
		packed      bool
		says        string
	}{{"on", "on", true, "by the GPUs"}, {"on", "auto", true, "by the GPUs"}, {"on", "off", false, "the peer has compression=off"}, {"off", "on", false, "option compression is off"}} {
		t.Run(c.here+" "+c.there, func(t *testing.T) {
			t.Parallel()
			h := onRails(t, 2, fake.TCPCaps())
			g := h.withPacking()
			rnd := rand.New(rand.NewPCG(5, 6))
			a, b := h.agent("a", "compression", c.here), h.agent("b", "compression", c.there)
			loadBoth(a, b)
			const size = 3 << 20
			mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
			seen := theirs.seenBy(a)
			for op, packer := range map[int]*agent{transfer.Write: a, transfer.Read: b} {
				for _, pieces := range []int{1, 700} {
					mine.numbers(rnd.Uint64())
					theirs.numbers(rnd.Uint64())
					before, owner := a.wireBytes(), packer.snapshot().Staged
					local, remote, want := lists(rnd, op, mine, seen, pieces)
					moved := uint64(0)
					for _, d := range local {
						moved += d.Len
					}
					r := a.prep(op, local, remote, "b").post("all is there")
					require.Equal(t, done, r.wait(), "op %d, %d pieces", op, pieces)
					got := theirs
					if op == transfer.Read {
						got = mine
					}
					pattern.Same(t, want, got.bytes(), "op %d, %d pieces", op, pieces)
					until(t, "the notification arrives", func() bool { return len(b.take()) > 0 })
					b.got = nil
					r.release()
					wire, now := a.wireBytes()-before, packer.snapshot().Staged
					if !c.packed {
						require.Equal(t, moved, wire)
						require.Zero(t, now.Packed+now.PackedBytes)
						continue
					}
					most := 0.75
					if pieces > 1 { // of odd lengths: half of the numbers lie across
						most = 0.95
					}
					require.Less(t, float64(wire), float64(moved)*most)
					chunks, out := now.Packed-owner.Packed, now.PackedBytes-owner.PackedBytes
					require.LessOrEqual(t, moved-chunks, uint64(wireLeast), "all but a small last chunk")
					require.Equal(t, wire, out+moved-chunks)
				}
			}
			require.True(t, h.log.has("transfers go through bounce buffers", c.says))
			notPacked(t, a, b, g, mine, theirs, seen)
		})
	}
}

// wireLeast is the least length of a chunk that is packed.
const wireLeast = 256 << 10

// TestStagePackedSmallSlots: bounce buffers that no packed chunk fits cost a GPU no memory, and the log says it.
func TestStagePackedSmallSlots(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	a, b := h.agent("a", "compression", "on"), h.agent("b", "compression", "on")
	loadBoth(a, b)
	mine, theirs := g.block(a, 0, mib), g.block(b, 1, mib)
	mine.numbers(1)
	x := a.whole2(transfer.Write, mine, theirs.seenBy(a)).post()
	require.Equal(t, done, x.wait())
	x.release()
	require.EqualValues(t, mib, a.wireBytes())
	require.LessOrEqual(t, int(g.lib.Count("modules")), 2, "no more than the copy kernel of each GPU")
	require.True(t, h.log.has("transfers go through bounce buffers", "less than 256 KiB"))
}

// notPacked moves what nobody packs.
func notPacked(t *testing.T, a, b *agent, g *gpus, mine, theirs, seen *block) {
	host := g.block(a, -1, mine.n)
	mine.fill(1)
	host.fill(2)
	for name, l := range map[string]struct {
		mine *block
		n    int
	}{"random": {mine, mine.n}, "small": {mine, wireLeast - 1}, "host memory": {host, mine.n}} {
		before, was := a.wireBytes(), a.snapshot().Staged.Packed
		r := a.prep(transfer.Write, []Desc{l.mine.desc(0, l.n)}, []Desc{seen.desc(0, l.n)}, "b").post()
		require.Equal(t, done, r.wait(), name)
		pattern.Same(t, l.mine.bytes()[:l.n], theirs.bytes()[:l.n], name)
		require.EqualValues(t, l.n, a.wireBytes()-before, name)
		require.Equal(t, was, a.snapshot().Staged.Packed, name)
		r.release()
	}
}

// TestStagePackedWrong: a peer's GPU makes what is no packed chunk. The transfer ends with an error at the side that unpacks, and never with
// success; bytes beside its pieces stay. The next one works.
func TestStagePackedWrong(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withPacking()
	a, b := h.agent("a", "compression", "on"), h.agent("b", "compression", "on")
	loadBoth(a, b)
	const size = 2 << 20
	mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
	seen := theirs.seenBy(a)
	for op := range 2 {
		mine.numbers(1)
		theirs.numbers(2)
		to := theirs
		if op == transfer.Read {
			to = mine
		}
		before := to.bytes()
		x := a.prep(op, []Desc{mine.desc(0, size/2)}, []Desc{seen.desc(0, size/2)}, "b")
		g.lib.Set("spoil", 1)
		x.post()
		require.NotEqual(t, done, x.wait())
		require.True(t, h.log.has("no compressed chunk"))
		g.lib.Set("spoil", 0)
		pattern.Same(t, before[size/2:], to.bytes()[size/2:], "beside the pieces")
		x.post()
		require.Equal(t, done, x.wait())
		pattern.Same(t, mine.bytes()[:size/2], theirs.bytes()[:size/2])
		x.release()
	}
}

// TestStagePackedFailures makes calls of the driver fail, on both sides. A transfer ends with the right bytes or an error.
func TestStagePackedFailures(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withPacking()
	a, b := h.agent("a", "log", "error", "compression", "on"), h.agent("b", "compression", "on")
	loadBoth(a, b)
	const size = 1 << 20
	mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
	seen := theirs.seenBy(a)
	failed := 0
	x := a.whole2(transfer.Write, mine, seen).post() // the GPUs have their room
	require.Equal(t, done, x.wait())
	x.release()
	for _, call := range []string{"EventCreate", "MemHostAlloc", "LaunchKernel", "MemcpyAsync", "MemsetD8Async", "CtxPushCurrent"} {
		for n := 1; n <= 6; n++ {
			for op := range 2 {
				mine.numbers(rand.Uint64())
				theirs.numbers(rand.Uint64())
				r := a.whole2(op, mine, seen)
				if g.failsAt(r, call, n) {
					failed++
				}
				pattern.Same(t, mine.bytes(), theirs.bytes(), "%s, call %d", call, n)
				r.release()
			}
		}
	}
	require.Greater(t, failed, 5)
	require.Positive(t, a.snapshot().Staged.Packed)
	require.Positive(t, b.snapshot().Staged.Packed)
}

// TestStagePackedCut: links fail, and transfers are released, in the middle of packed transfers. What ends with success has its bytes.
func TestStagePackedCut(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withPacking()
	a, b := h.agent("a", "compression", "on"), h.agent("b", "compression", "on")
	loadBoth(a, b)
	const size = 2 << 20
	mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
	seen := theirs.seenBy(a)
	for n := range 12 {
		op := n % 2
		mine.numbers(rand.Uint64())
		theirs.numbers(rand.Uint64())
		x := a.whole2(op, mine, seen)
		h.failAt(a, 1+n/2)
		x.post()
		require.Equal(t, done, x.wait(), n)
		pattern.Same(t, mine.bytes(), theirs.bytes(), n)
		x.release()
		h.failAt(a, 0)
		x = a.whole2(op, mine, seen).post()
		for k := 0; k < n*20 && x.check() == inProg; k++ {
		}
		x.release() // in the middle
	}
	require.True(t, h.log.has("fencing a link"))
	x := a.whole2(transfer.Write, mine, seen).post()
	require.Equal(t, done, x.wait())
	pattern.Same(t, mine.bytes(), theirs.bytes())
	x.release()
}

// TestPackedCopyAsked: a peer may ask for packed copies of what it may access, in a bounce buffer that takes them, and else gets an error.
func TestPackedCopyAsked(t *testing.T) {
	t.Parallel()
	const size = 512 << 10
	h := onFake(t, fake.TCPCaps())
	g := h.withPacking()
	for _, mode := range []string{"on", "off"} {
		a := h.agent("ann "+mode, "compression", mode)
		given, hidden := g.block(a, 0, size), g.block(a, 0, size)
		given.numbers(1)
		hidden.numbers(2)
		c, f := knock(a.conn(), strangerKey(len(mode)), 1, h.offer(a, 1))
		require.IsType(t, &wire.Welcome{}, f)
		own := a.claim(given.md.region)
		ring := c.ask(t, &wire.RingReq{ID: 20, For: own}).(*wire.Ring)
		require.Empty(t, ring.Text)
		require.Equal(t, mode == "on", ring.Code == wire.CodePacks)
		of := func(out bool, off, packed uint64, at *block, n uint64) *wire.PackedCopied {
			return c.ask(t, &wire.PackedCopy{Copy: wire.Copy{ID: 30, Out: out, At: ring.Range.Addr + off, Regions: wire.Claims{own},
				Pieces: wire.CopyPieces{{Addr: at.addr, Len: n}}}, Packed: uint32(packed)}).(*wire.PackedCopied)
		}
		if mode == "off" {
			require.Contains(t, of(true, 0, 0, given, size).Copied.Text, "do not take")
			require.Contains(t, of(false, 0, 999, given, size).Copied.Text, "do not take")
			c.Close()
			continue
		}
		made := of(true, 0, 0, given, size)
		require.Empty(t, made.Copied.Text)
		require.Less(t, made.Packed, uint32(size*3/4))
		given.numbers(3)
		require.Empty(t, of(false, 0, uint64(made.Packed), given, size).Copied.Text)
		want := make([]byte, size)
		pattern.Fill(want, 1|pattern.Floats, 0)
		pattern.Same(t, want, given.bytes())
		before := hidden.bytes()
		require.Contains(t, of(false, 0, uint64(made.Packed), hidden, size).Copied.Text, "outside of its region")
		require.Contains(t, of(false, 0, size+1, given, size).Copied.Text, "do not take")
		require.Contains(t, of(false, 8, size/2, given, size/2).Copied.Text, "do not take", "not aligned")
		require.Contains(t, of(true, 16, 0, given, size).Copied.Text, "not in one bounce buffer")
		rnd := rand.New(rand.NewPCG(1, 1))
		for range 50 { // other slots have other bytes, and lengths are random
			n := 1 + rnd.Uint64N(size)
			text := of(false, size*rnd.Uint64N(16), 1+rnd.Uint64N(n), given, n).Copied.Text
			require.Contains(t, text, "no compressed chunk")
		}
		pattern.Same(t, before, hidden.bytes())
		c.Close()
	}
}

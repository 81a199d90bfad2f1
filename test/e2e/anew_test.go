package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/hostmem"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// quick is the time within which a post to memory that is gone for long has its error.
const quick = 50 * time.Millisecond

// anew is a pair whose target deregisters memory and registers the same range again. The metadata stays equal, and the
// initiator's requests stay as they are.
type anew struct {
	*pairOf
	t      *testing.T
	a, b   *worker.Buf
	la, lb worker.Layout
	md     []byte
	made   map[nixlapi.Op][]*worker.Xfer // an ordinary request, and one from prepared lists
	seed   uint64                        // of the last contents
}

func newAnew(t *testing.T, p *pairOf, a, b *worker.Buf) *anew {
	t.Helper()
	h := &anew{pairOf: p, t: t, a: a, b: b, la: scattered(77, 4096, 100, 100, 1), lb: scattered(9, 4096, 300, 100, 2),
		md: p.tgt.Metadata(), made: map[nixlapi.Op][]*worker.Xfer{}, seed: 100}
	_, err := p.ini.Load(h.md)
	require.NoError(t, err)
	here, there := p.ini.Prep("", a.At(h.la)), p.ini.Prep("bob", b.At(h.lb))
	all := make([]int32, h.la.Count)
	for i := range all {
		all[i] = int32(i)
	}
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		spec := worker.XferSpec{Op: op, Local: a.At(h.la), Remote: b.At(h.lb), Peer: "bob", Notif: []byte(op.String())}
		h.made[op] = []*worker.Xfer{p.ini.Xfer(spec), p.ini.MakeXfer(spec, here, all, there, all)}
	}
	return h
}

// works posts each request. Its bytes and its notification arrive, and nothing else.
func (h *anew) works() {
	h.t.Helper()
	for op, list := range h.made {
		for _, x := range list {
			h.seed += 2
			h.a.Fill(h.seed)
			h.b.Fill(h.seed + 1)
			x.Do(limit)
			require.Equal(h.t, []nixlapi.Notif{{From: "alice", Msg: []byte(op.String())}}, h.tgt.WaitNotifs(1, limit))
			if op == nixlapi.Write {
				h.b.WantBlocks(h.seed+1, h.lb, h.seed, h.la)
				h.a.Want(h.seed)
			} else {
				h.a.WantBlocks(h.seed, h.la, h.seed+1, h.lb)
				h.b.Want(h.seed + 1)
			}
		}
	}
}

// gone posts until the error comes quickly. All errors are GR-1057.
func (h *anew) gone(x *worker.Xfer) {
	h.t.Helper()
	var took time.Duration
	require.True(h.t, worker.Eventually(limit, func() bool {
		s, post := x.PostTimed()
		if took = post; s == nixlapi.InProgress {
			end := x.WaitAsync(limit).Wait()
			s, took = end.Status, took+end.Took
		}
		require.True(h.t, s.Failed(), s)
		return took <= quick
	}), "the last error came after %s", took)
	says(h.t, h.ini.Worker, "transfer failed", "code=GR-1057")
	require.True(h.t, h.ini.Knows("bob"), "the agent forgot a peer that lives")
}

// run deregisters and registers three times. posts: the initiator posts in between.
func (h *anew) run() {
	h.t.Helper()
	h.works()
	for _, posts := range []bool{false, true, false} {
		require.NoError(h.t, h.tgt.Deregister(h.b.All()))
		if posts {
			h.a.Fill(7)
			h.b.Fill(8)
			for _, list := range h.made {
				for _, x := range list {
					h.gone(x)
				}
			}
			h.a.Want(7)
			h.b.Want(8)
		}
		h.b.Renew()
		require.NoError(h.t, h.tgt.Register(h.b.All()))
		require.Equal(h.t, h.md, h.tgt.Metadata(), "the metadata changed")
		_, err := h.ini.Load(h.md)
		require.NoError(h.t, err)
		h.works()
	}
	for _, list := range h.made {
		for _, x := range list {
			release(h.t, x)
		}
	}
}

// onNode is a pair of agents in two pods of one node. The target polls.
func onNode(t *testing.T) *pairOf {
	n := newNode(t)
	p := &pairOf{ini: n.pod().start("alice"), tgt: n.pod().start("bob")}
	p.tgt.Polling(true)
	return p
}

// TestRegisteredAnew: the target deregisters host memory, its pages change, and it registers the same range again. Requests of
// before work with the new bytes. Posts in between end with GR-1057, soon once the memory is gone for long.
func TestRegisteredAnew(t *testing.T) {
	t.Parallel()
	ours(t)
	for name, c := range map[string]struct {
		pair func(t *testing.T) *pairOf
		kind hostmem.Kind
		way  string
	}{
		"tcp":         {func(t *testing.T) *pairOf { return pair(t, params("provider", "tcp", "log", "info")) }, hostmem.Anon, wayTCP},
		"direct":      {func(t *testing.T) *pairOf { return pair(t, params("provider", smProvider(), "log", "info")) }, hostmem.Anon, wayDirect},
		"pods ring":   {onNode, hostmem.Anon, wayRing},
		"pods mapped": {onNode, hostmem.Shared, wayRing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 1 << 20
			p := c.pair(t)
			newAnew(t, p, p.ini.BufferOf(c.kind, size, seedA), p.tgt.BufferOf(c.kind, size, seedB)).run()
			requireWay(t, p.ini, "bob", c.way)
		})
	}
}

// TestVRAMRegisteredAnew is TestRegisteredAnew for GPU memory: the driver gives other memory the same addresses.
func TestVRAMRegisteredAnew(t *testing.T) {
	t.Parallel()
	ours(t)
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("a real driver need not give the same address again")
	}
	vmm := worker.GPUMem{Device: 1, Handles: 2}
	for name, c := range map[string]struct {
		provider    string
		here, there *worker.GPUMem
	}{
		"sm cudaMalloc":           {"sm", gpuMem(0), gpuMem(1)},
		"sm cudaMalloc, one GPU":  {"sm", gpuMem(1), gpuMem(1)},
		"sm VMM":                  {"sm", gpuMem(0), &vmm},
		"sm VMM, one GPU":         {"sm", gpuMem(1), &vmm},
		"sm host to cudaMalloc":   {"sm", nil, gpuMem(1)},
		"sm host to VMM":          {"sm", nil, &vmm},
		"tcp cudaMalloc":          {"tcp", gpuMem(0), gpuMem(1)},
		"tcp VMM":                 {"tcp", gpuMem(0), &vmm},
		"tcp host to VMM":         {"tcp", nil, &vmm},
		"tcp staged, VMM":         {"tcp staged", gpuMem(0), &vmm},
		"tcp staged, cudaMalloc":  {"tcp staged", gpuMem(0), gpuMem(1)},
		"tcp staged, VMM at both": {"tcp staged", &worker.GPUMem{Device: 0, Handles: 2}, &vmm},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 2 * cuda.Granule
			p := anewGPUs(t, c.provider)
			a, b := buffer(p.ini, size, seedA, c.here), buffer(p.tgt, size, seedB, c.there)
			h := newAnew(t, p, a, b)
			if c.provider == "tcp staged" { // larger than what goes through the rail's own bounce buffers
				h.whole()
			}
			h.run()
			p.endGPU(t, a, b)
		})
	}
}

func anewGPUs(t *testing.T, provider string) *pairOf {
	t.Helper()
	if provider == "sm" {
		return gpuPair(t)
	}
	return stagedPair(t, "tcp")
}

// whole makes the requests anew, of the whole buffers.
func (h *anew) whole() {
	h.t.Helper()
	h.la, h.lb = worker.Span(0, h.a.Size), worker.Span(0, h.b.Size)
	here, there := h.ini.Prep("", h.a.All()), h.ini.Prep("bob", h.b.All())
	for op, list := range h.made {
		for _, x := range list {
			release(h.t, x)
		}
		spec := worker.XferSpec{Op: op, Local: h.a.All(), Remote: h.b.All(), Peer: "bob", Notif: []byte(op.String())}
		h.made[op] = []*worker.Xfer{h.ini.Xfer(spec), h.ini.MakeXfer(spec, here, []int32{0}, there, []int32{0})}
	}
}

// TestAnewEndsWait: the target takes back memory of a request in flight, or before its post, and registers the range again. The
// registration shows that the target's agent lives: once another request has asked for the keys, the error waits no longer.
func TestAnewEndsWait(t *testing.T) {
	t.Parallel()
	ours(t)
	const size = 32 << 20
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprint("in flight=", early), func(t *testing.T) {
			t.Parallel()
			p := pair(t, params("provider", "tcp"))
			a, b := p.buffers(size)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
			y := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 4096), Remote: b.Span(0, 4096), Peer: "bob"})
			x.Do(limit)
			took := time.Duration(0)
			require.True(t, worker.Eventually(limit, func() bool {
				if early {
					require.False(t, x.Post().Failed())
				}
				require.NoError(t, p.tgt.Deregister(b.All()))
				if !early {
					require.False(t, x.Post().Failed())
				}
				end := x.WaitAsync(limit)
				require.NoError(t, p.tgt.Register(b.All()))
				y.Do(limit)
				e := end.Wait()
				took = e.Took
				return e.Status.Failed() && took < 300*time.Millisecond
			}), "the last request ended after %s", took)
		})
	}
}

// TestDestroyedAfterSleep: the target has deregistered one buffer long ago. Then its agent is destroyed, which deregisters many
// others. A post to one of those ends with NIXL_ERR_REMOTE_DISCONNECT or with success, also behind a quick GR-1057.
func TestDestroyedAfterSleep(t *testing.T) {
	t.Parallel()
	ours(t)
	for range rounds(3, 10) {
		p := &pairOf{env: testenv.Need(t), ini: start(t, "alice"), tgt: start(t, "bob")}
		p.tgt.Polling(true)
		a := p.ini.Buffer(1<<20, seedA)
		asleep := p.tgt.Buffer(1<<20, seedB)
		many := p.tgt.Alloc(256*4096, hostmem.Anon)
		require.NoError(t, p.tgt.Register(many.At(worker.Layout{Len: 4096, Stride: 4096, Count: 256})))
		h := newAnew(t, p, a, asleep)
		h.works()
		require.NoError(t, p.tgt.Deregister(asleep.All()))
		h.gone(h.made[nixlapi.Write][1])
		quickly := len(logged(p.ini.Worker))
		var beside []int
		var loops []*worker.Xfer
		for i := range uint64(8) {
			loops = append(loops, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(i*4096, 4096), Remote: many.Span(i*32*4096, 4096), Peer: "bob"}))
			loops[i].Do(limit)
			beside = append(beside, loops[i].ID())
		}
		loop := loops[0].LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit, Beside: beside[1:]})
		require.NoError(t, p.tgt.Close())
		l := loop.Wait()
		require.True(t, l.Status.Failed(), "%s after %d transfers", l.Status, l.Done)
		expectLost(t, p.ini, loops[0])
		for _, line := range logged(p.ini.Worker)[quickly:] {
			require.NotContains(t, line, "NIXL_ERR_BACKEND") // the C API has one code for both; the agent's log has the name
		}
		exit(t, p.ini, p.tgt)
	}
}

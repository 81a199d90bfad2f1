package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/cuda"
	"gorail/test/fake"
)

// gpus is an imitated driver and an application that uses it.
type gpus struct {
	*cuda.App
	t   testing.TB
	lib *cuda.Lib
}

// withGPUs gives the harness's engines imitated GPUs. Rings are small, so that a transfer has many chunks.
func (h *harness) withGPUs() *gpus {
	lib := cuda.Build(h.TB)
	h.params = append(h.params, "cuda_path", lib.Path, "stage_size", "1MiB")
	return &gpus{cuda.NewApp(h.TB, lib.Path), h.TB, lib}
}

// block is registered memory of the host or of a GPU.
type block struct {
	owner *agent
	gpus  *gpus
	mem   int32
	dev   int
	addr  uint64
	n     int
	md    *metaObject
	seen  *metaObject //nolint:unused // as the peer of a walk of failpoints has it
	host  *memory
}

// block makes memory of a GPU. dev -1: memory of the host.
func (g *gpus) block(a *agent, dev, n int, meta ...string) *block {
	b := &block{owner: a, gpus: g, dev: dev, n: n}
	if dev < 0 {
		b.host = a.memory(n)
		b.addr, b.md = b.host.addr(), b.host.md
		return b
	}
	b.mem, b.addr = region.VRAM, g.Alloc(dev, cuda.Device, uint64(n))
	id, err := a.Register(b.addr, uint64(n), uint64(dev), region.VRAM, []byte(strings.Join(meta, " ")))
	require.NoError(g.t, err)
	b.md = &metaObject{region: id}
	g.t.Cleanup(func() { g.Free(dev, cuda.Device, b.addr) })
	return b
}

func (b *block) seenBy(a *agent) *block {
	blob, err := b.owner.RegionBlob(b.md.region)
	require.NoError(b.owner.t, err)
	id, err := a.LoadRemote(b.owner.name, b.addr, uint64(b.n), uint64(max(b.dev, 0)), b.mem, blob)
	require.NoError(b.owner.t, err)
	c := *b
	c.md = &metaObject{region: id}
	return &c
}

func (b *block) bytes() []byte {
	if b.host != nil {
		return bytes.Clone(b.host.b)
	}
	return b.gpus.Read(b.dev, b.addr, uint64(b.n))
}

func (b *block) fill(seed uint64) {
	in := make([]byte, b.n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(in)
	if b.host != nil {
		copy(b.host.b, in)
		return
	}
	b.gpus.Write(b.dev, b.addr, in)
}

func (b *block) desc(off, n int) Desc {
	return Desc{Addr: b.addr + uint64(off), Len: uint64(n), Dev: uint64(max(b.dev, 0)), MD: unsafe.Pointer(b.md)}
}

// lists makes two lists of n pieces, in a different order on each side. want is the destination after the transfer.
func lists(rnd *rand.Rand, op int, mine, theirs *block, n int) (local, remote []Desc, want []byte) {
	from, to := mine, theirs
	if op == transfer.Read {
		from, to = to, from
	}
	src, room := from.bytes(), mine.n/n
	want = to.bytes()
	for i, k := range rnd.Perm(n) {
		length, at, into := 1+rnd.IntN(room), i*room, k*room
		copy(want[into:into+length], src[at:at+length])
		f, d := from.desc(at, length), to.desc(into, length)
		if op == transfer.Read {
			f, d = d, f
		}
		local, remote = append(local, f), append(remote, d)
	}
	return local, remote, want
}

// TestStage moves GPU memory of one side or both, over all kinds of rails, to another engine and in loopback.
func TestStage(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		g := h.withGPUs()
		rnd := rand.New(rand.NewPCG(5, 6))
		a, b := h.agent("a"), h.agent("b")
		loadBoth(a, b)
		const size = 3 << 20
		for _, kinds := range [][2]int{{0, 1}, {-1, 1}, {0, -1}} {
			for _, peer := range []*agent{b, a} {
				mine, theirs := g.block(a, kinds[0], size), g.block(peer, kinds[1], size)
				seen := theirs
				if peer != a {
					seen = theirs.seenBy(a)
				}
				for op := range 2 {
					mine.fill(rnd.Uint64())
					theirs.fill(rnd.Uint64())
					local, remote, want := lists(rnd, op, mine, seen, 700)
					r := a.prep(op, local, remote, peer.name).post("all is there")
					require.Equal(h, done, r.wait(), "memory %v to %s, op %d", kinds, peer.name, op)
					got := theirs
					if op == transfer.Read {
						got = mine
					}
					pattern.Same(h, want, got.bytes(), "%v to %s, op %d", kinds, peer.name, op)
					until(h, "the notification arrives", func() bool { return len(peer.take()) > 0 })
					peer.got = nil
					r.release()
				}
			}
		}
		s, err := a.Snapshot()
		require.NoError(h, err)
		require.Equal(h, h.host, s.Staged.Transfers < 12, "only shared memory copies GPU to GPU without staging")
		s, err = b.Snapshot()
		require.NoError(h, err)
		require.Positive(h, s.Staged.Copies)
		require.Zero(h, a.refused()+b.refused())
		require.NoError(h, a.Close())
		require.NoError(h, b.Close())
	})
}

// TestStageFailures makes calls of the driver fail, on both sides. A transfer ends with the right bytes or an error. The next one
// works.
func TestStageFailures(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	rnd := rand.New(rand.NewPCG(7, 8))
	a, b := h.agent("a", "log", "error"), h.agent("b")
	loadBoth(a, b)
	const size = 1 << 20
	mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
	seen := theirs.seenBy(a)
	failed := 0
	for _, call := range []string{"StreamCreateWithPriority", "MemHostRegister", "MemHostAlloc", "EventCreate", "EventRecord", "LaunchKernel", "MemcpyAsync", "CtxPushCurrent"} {
		for n := 1; n <= 3; n++ {
			for op := range 2 {
				for _, pieces := range []int{1, 50} {
					mine.fill(rnd.Uint64())
					theirs.fill(rnd.Uint64())
					local, remote, want := lists(rnd, op, mine, seen, pieces)
					r := a.prep(op, local, remote, "b")
					if g.failsAt(r, call, n) {
						failed++
					}
					got := theirs
					if op == transfer.Read {
						got = mine
					}
					pattern.Same(t, want, got.bytes(), "%s, call %d", call, n)
					r.release()
				}
			}
		}
	}
	require.Greater(t, failed, 5)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestStageHammer runs many staged transfers at the same time. Some are released in flight, and regions are deregistered and
// registered. At the end the peer closes during transfers. Nothing hangs and nothing stays open.
func TestStageHammer(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	g := h.withGPUs()
	a, b := h.agent("a"), h.agent("b")
	loadBoth(a, b)
	const size = 512 << 10
	var wg sync.WaitGroup
	for w := range 6 {
		mine, theirs := g.block(a, w%3-1, size), g.block(b, (w+1)%2, size)
		seen := theirs.seenBy(a)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 40 {
				op := rnd.IntN(2)
				var local, remote []Desc
				for k := range 64 {
					local, remote = append(local, mine.desc(k*8192, 8000)), append(remote, seen.desc(k*8192, 8000))
				}
				r := a.prep(op, local, remote, "b")
				if _, err := r.Post(fmt.Sprint(w, i)); err == nil && rnd.IntN(3) > 0 {
					if s := r.wait(); s != done && w != 5 {
						h.Errorf("worker %d, run %d: status %d", w, i, s)
					}
				}
				r.release()
				if w == 5 && i%8 == 7 { // its memory is deregistered and registered
					if err := b.Deregister(theirs.md.region); err != nil {
						h.Error(err)
					}
					id, err := b.Register(theirs.addr, size, uint64(theirs.dev), region.VRAM, nil)
					if err != nil {
						h.Error(err)
						return
					}
					theirs.md.region = id
				}
			}
		})
	}
	wg.Wait()
	last := g.block(a, 0, size)
	var open []*request
	far := g.block(b, 1, size).seenBy(a)
	for range 8 {
		open = append(open, a.whole2(transfer.Write, last, far).post())
	}
	require.NoError(t, b.Close())
	for _, r := range open {
		s := errcode.Status(r.wait())
		require.Contains(t, []errcode.Status{errcode.Success, errcode.ErrRemoteDisconnect, errcode.ErrBackend}, s)
		r.release()
	}
	require.NoError(t, a.Close())
}

// whole2 prepares a transfer of all bytes of mine.
func (a *agent) whole2(op int, mine, theirs *block) *request {
	return a.prep(op, []Desc{mine.desc(0, mine.n)}, []Desc{theirs.desc(0, theirs.n)}, theirs.owner.name)
}

// failsAt posts a transfer while the n-th of these calls of the driver fails. If it ends with an error, its next post must succeed.
func (g *gpus) failsAt(r *request, call string, n int) (failed bool) {
	g.lib.Fail(call, n, cuda.OutOfMemory)
	_, err := r.Post()
	s := r.wait()
	g.lib.Fail(call, 0, 0)
	if err == nil && s == done {
		return false
	}
	r.post()
	require.Equal(r.a.t, done, r.wait(), "%s, call %d: the next post", call, n)
	return true
}

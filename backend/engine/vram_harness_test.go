package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/verbs"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/cuda"
	imitation "gorail/test/verbs"
)

// gpuHarness is a harness over imitated InfiniBand devices that reach the memory of imitated GPUs.
type gpuHarness struct {
	*harness
	cuda *cuda.Lib
	app  *cuda.App
	sys  fstest.MapFS
}

func onGPUDevices(t testing.TB, devices int) *gpuHarness {
	h := &gpuHarness{cuda: cuda.Build(t), sys: imitation.Sys(4, 1, true)}
	h.app = cuda.NewApp(t, h.cuda.Path)
	h.harness = onVerbs(t, devices)
	h.lib.Set("dmabuf", 1)
	h.params = append(h.params, "cuda_path", h.cuda.Path, "stage_size", "1MiB")
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	h.wrap = func(provider.Provider) provider.Provider {
		return verbs.New(verbs.Options{LibraryPath: h.lib.Path, CUDAPath: h.cuda.Path, Sys: h.sys, IB: opts.IB})
	}
	return h
}

// vram is registered memory of a GPU, or of the host (app nil). md is the metadata at its owner or at a peer.
type vram struct {
	owner *agent
	app   *cuda.App
	dev   int
	at    uint64
	size  int
	host  []byte
	md    *metaObject
	blob  []byte
}

// gpu registers memory of a GPU. With handles > 0 the memory has that many CUDA handles. The end of the test frees it.
func (h *gpuHarness) gpu(a *agent, dev, size, handles int) *vram {
	h.Helper()
	m := &vram{owner: a, app: h.app, dev: dev, size: size}
	if handles > 0 {
		m.at = h.app.VMM(dev, handles, cuda.Granule, false)
		h.Cleanup(func() { h.app.FreeVMM(dev, handles, cuda.Granule, m.at) })
	} else {
		m.at = h.app.Alloc(dev, cuda.Device, uint64(size))
		h.Cleanup(func() { h.app.Free(dev, cuda.Device, m.at) })
	}
	id, err := a.Register(m.at, uint64(size), uint64(dev), region.VRAM, nil)
	require.NoError(h, err)
	m.md = &metaObject{region: id}
	m.blob, err = a.RegionBlob(id)
	require.NoError(h, err)
	h.Cleanup(func() { _ = a.Deregister(id) }) // before the memory is freed
	return m
}

// dram registers memory of the host, as a vram.
func (h *gpuHarness) dram(a *agent, size int) *vram {
	m := a.memory(size)
	return &vram{owner: a, at: m.addr(), size: size, host: m.b, md: m.md, blob: m.blob}
}

func (m *vram) mem() int32 {
	if m.app != nil {
		return region.VRAM
	}
	return 0
}

func (m *vram) seenBy(a *agent) *vram {
	id, err := a.LoadRemote(m.owner.name, m.at, uint64(m.size), uint64(m.dev), m.mem(), m.blob)
	require.NoError(a.t, err)
	seen := *m
	seen.md = &metaObject{region: id}
	return &seen
}

func (m *vram) desc(off, n int) Desc {
	return Desc{Addr: m.at + uint64(off), Len: uint64(n), Dev: uint64(m.dev), MD: unsafe.Pointer(m.md)}
}

// fill writes random bytes and returns them.
func (m *vram) fill() []byte {
	b := make([]byte, m.size, m.size+8)
	r := rand.NewPCG(rand.Uint64(), 0)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:i+8], r.Uint64())
	}
	if m.app != nil {
		m.app.Write(m.dev, m.at, b)
	} else {
		copy(m.host, b)
	}
	return b
}

func (m *vram) bytes() []byte {
	if m.app != nil {
		return m.app.Read(m.dev, m.at, uint64(m.size))
	}
	return append([]byte(nil), m.host...)
}

// scattered is n pieces in random order. Some fit into a work request as inline data.
func scattered(n, space int) (at, lens []int) {
	each := space / n
	for _, i := range rand.Perm(n) {
		at = append(at, i*each+rand.IntN(7))
		lens = append(lens, min(each-7, 1+rand.IntN(each)))
	}
	return at, lens
}

// moves transfers in both directions, whole and scattered, and compares all bytes of both sides.
func (h *gpuHarness) moves(a, b *agent, mine, theirs *vram) {
	h.Helper()
	seen := theirs.seenBy(a)
	for op := range 2 {
		near, far := mine.fill(), theirs.fill()
		if x := a.prep(op, []Desc{mine.desc(0, mine.size)}, []Desc{seen.desc(0, mine.size)}, b.name); op == transfer.Write {
			x.run("all")
			b.expect(a.name + ":all")
			copy(far, near)
			x.release()
		} else {
			x.run()
			copy(near, far)
			x.release()
		}
		pattern.Same(h, near, mine.bytes())
		pattern.Same(h, far, theirs.bytes())
		near, far = mine.fill(), theirs.fill()
		from, lens := scattered(300, mine.size)
		to, _ := scattered(300, mine.size)
		var local, remote []Desc
		for i, n := range lens {
			n = min(n, mine.size/300-7)
			local, remote = append(local, mine.desc(from[i], n)), append(remote, seen.desc(to[i], n))
			if op == transfer.Write {
				copy(far[to[i]:to[i]+n], near[from[i]:])
			} else {
				copy(near[from[i]:from[i]+n], far[to[i]:])
			}
		}
		x := a.prep(op, local, remote, b.name)
		x.run("pieces")
		b.expect(a.name + ":pieces")
		x.release()
		pattern.Same(h, near, mine.bytes())
		pattern.Same(h, far, theirs.bytes())
	}
}

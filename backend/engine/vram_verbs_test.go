package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/verbs"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/cuda"
	imitation "gorail/test/verbs"
)

// GPU memory moves over verbs, to memory of a GPU or of the host. It is registered as a dmabuf or through nvidia_peermem, on one to
// three devices, whole or in slices. All bytes are compared.
func TestVerbsVRAM(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	for name, c := range map[string]struct {
		devices, handles int
		peermem          bool
		params           []string
		how              string
	}{
		"dmabuf":               {devices: 1, how: "dmabuf"},
		"dmabuf, handles":      {devices: 1, handles: 2, how: "dmabuf"},
		"dmabuf, three rails":  {devices: 3, how: "dmabuf"},
		"dmabuf, slices":       {devices: 2, handles: 2, params: []string{"mr_max", "1MiB"}, how: "dmabuf"},
		"peermem":              {devices: 1, peermem: true, how: "nvidia_peermem"},
		"peermem, three rails": {devices: 3, peermem: true, handles: 2, how: "nvidia_peermem"},
	} {
		t.Run(name, func(t *testing.T) {
			h := onGPUDevices(t, c.devices)
			if c.peermem {
				h.lib.Set("dmabuf", 0)
				h.lib.Peermem(h.cuda.Peermem())
			}
			a, b := h.agent("ann", c.params...), h.agent("bob", c.params...)
			loadBoth(a, b)
			h.moves(a, b, h.gpu(a, 0, size, c.handles), h.gpu(b, 1, size, c.handles))
			h.moves(a, b, h.gpu(a, 1, size, c.handles), h.dram(b, size))
			h.moves(a, b, h.dram(a, size), h.gpu(b, 0, size, c.handles))
			require.True(t, h.log.has("memory of GPUs is registered on a rail", "verbs/hca0", c.how))
			require.Equal(t, 2*c.devices, h.log.count("memory of GPUs is registered on a rail"), "one line per rail of each agent")
			if c.devices > 1 {
				require.True(t, h.log.has("memory of GPUs is registered on a rail", "verbs/hca1", c.how))
			}
		})
	}
}

// GPU memory is freed without deregistration and allocated again at the same address. The application registers it again. Peers
// reach the new memory then.
func TestVerbsVRAMFreed(t *testing.T) {
	t.Parallel()
	h := onGPUDevices(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	const size = 1 << 20
	mine := h.gpu(a, 0, size, 0)
	at := h.app.Alloc(1, cuda.Device, size)
	theirs := &vram{owner: b, app: h.app, dev: 1, at: at, size: size}
	id, err := b.Register(at, size, 1, region.VRAM, nil)
	require.NoError(t, err)
	theirs.blob, err = b.RegionBlob(id)
	require.NoError(t, err)
	h.moves(a, b, mine, theirs)
	h.app.Free(1, cuda.Device, at)
	again := h.app.Alloc(1, cuda.Device, size)
	require.Equal(t, at, again)
	_, err = b.Register(at, size, 1, region.VRAM, nil)
	require.NoError(t, err)
	require.True(t, h.log.has("is mapped at registered addresses"))
	h.moves(a, b, mine, theirs)
	require.NoError(t, b.Deregister(id))
	require.NoError(t, b.Deregister(id))
	h.app.Free(1, cuda.Device, at)
}

// The rail near a GPU carries small transfers of its memory, in whichever order the rails are listed. A large transfer uses both
// rails.
func TestVerbsVRAMNear(t *testing.T) {
	t.Parallel()
	h := onGPUDevices(t, 2)
	const left, right = "pci0000:15/0000:15:01.0/0000:16:00.0/", "pci0000:80/0000:80:01.0/0000:81:00.0/"
	imitation.OnPCI(h.sys, 0, left+"0000:17:00.0/0000:18:00.0")
	imitation.OnPCI(h.sys, 1, right+"0000:82:00.0/0000:83:00.0")
	imitation.OnPCI(h.sys, -1, left+"0000:17:01.0/0000:a0:00.0")
	imitation.OnPCI(h.sys, -1, right+"0000:82:01.0/0000:a1:00.0")
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	theirs := h.dram(b, 16<<20)
	seen := theirs.seenBy(a)
	for dev := range 2 {
		mine := h.gpu(a, dev, 16<<20, 0)
		mine.fill()
		x := a.prep(transfer.Write, []Desc{mine.desc(0, 16<<20)}, []Desc{seen.desc(0, 16<<20)}, "bob")
		until(t, "both rails work", func() bool { return a.connected("bob").atWork() == 2 })
		x.run("")
		for i, n := range x.shares() {
			require.Positive(t, n, "rail %d", i)
		}
		until(t, "small transfers stay on the near rail", func() bool { // a busy machine may stop a rail while its rate is measured:
			x.post()
			require.Equal(t, done, x.wait()) // measures again
			far := 0
			b.take() // a busy machine needs many rounds, and notifications that nobody takes end the credits
			for i := range 20 {
				y := a.prep(i%2, []Desc{mine.desc(i<<12, 4096)}, []Desc{seen.desc(i<<12, 4096)}, "bob")
				y.post()
				require.Equal(t, done, y.wait())
				if y.shares()[1-dev] > 0 {
					far++
				}
				y.release()
			}
			return far == 0
		})
		x.release()
		require.NoError(t, a.Deregister(mine.md.region))
	}
}

// A GPU with writes_order 0 needs a flush to see what a device has written. The target flushes before it gives the application the
// notification of a WRITE. The initiator flushes before a READ ends. There is no other flush, and none before memory of such a GPU
// is registered.
func TestVerbsVRAMFlush(t *testing.T) {
	t.Parallel()
	for _, order := range []int{0, 100} {
		h := onGPUDevices(t, 1)
		h.cuda.Set("writes_order", order)
		a, b := h.agent("ann"), h.agent("bob")
		loadBoth(a, b)
		const size = 1 << 20
		x := a.prep(transfer.Read, []Desc{h.dram(a, size).desc(0, size)}, []Desc{h.dram(b, size).seenBy(a).desc(0, size)}, "bob")
		x.run("host")
		b.expect("ann:host")
		require.Zero(t, h.cuda.Count("flushes"))
		mine, theirs := h.gpu(a, 0, size, 0), h.gpu(b, 1, size, 0)
		local, remote := []Desc{mine.desc(0, size)}, []Desc{theirs.seenBy(a).desc(0, size)}
		flushed := func(what string, do func()) {
			before := h.cuda.Count("flushes")
			do()
			require.Equal(t, order == 0, h.cuda.Count("flushes") > before, what)
		}
		w, r := a.prep(transfer.Write, local, remote, "bob"), a.prep(transfer.Read, local, remote, "bob")
		before := h.cuda.Count("flushes")
		w.run("written")
		require.Equal(t, before, h.cuda.Count("flushes"), "the initiator of a WRITE needs no flush")
		flushed("a notification", func() { b.expect("ann:written") })
		for range 3 { // posted through Go first, then without
			flushed("a READ", func() { r.run() })
		}
		a.quiet()
	}
}

// Memory of another GPU is mapped at registered addresses, and cannot be registered there. It is tried once. Copies of it cause few looks.
// Memory of the right GPU is direct again.
func TestVRAMOfAnotherGPU(t *testing.T) {
	t.Parallel()
	const handles, size = 2, 2 * cuda.Granule
	h := onGPUDevices(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	mine, theirs := h.gpu(a, 0, size, handles), h.gpu(b, 0, size, handles)
	h.moves(a, b, mine, theirs)
	h.app.UnmapVMM(0, handles, cuda.Granule, theirs.at)
	h.app.MapVMM(1, handles, cuda.Granule, theirs.at)
	r := b.regions.Regions.Get(theirs.md.region)
	copied := func() { // only a copy registers memory again
		b.regions.Recheck()
		held, err := b.regions.HoldForCopy([]wire.Claim{r.Claim}, option.PeersRead)
		require.NoError(t, err)
		b.regions.Copied(held)
	}
	for start := time.Now(); time.Since(start) < 4*region.Settled; {
		copied()
	}
	said := func() int { return strings.Count(h.log.String(), "cannot be registered: transfers of it") }
	until(t, "the log says it", func() bool { copied(); return said() > 0 })
	for range 10 {
		copied()
	}
	require.Equal(t, 1, said(), "%s", h.log)
	require.LessOrEqual(t, h.log.count("GPU memory was unmapped or replaced"), 1)

	h.app.UnmapVMM(1, handles, cuda.Granule, theirs.at) // the addresses sleep, and copies ask for looks
	until(t, "a look finds it", func() bool { b.regions.Recheck(); return b.regions.Refused(r.ID) == nil && r.Rails.Load() == 0 })
	asked, start := h.cuda.Count("asked"), time.Now()
	for time.Since(start) < 6*region.Settled {
		held, err := b.regions.HoldForCopy([]wire.Claim{r.Claim}, option.PeersRead)
		require.NoError(t, err)
		b.regions.Copied(held)
		time.Sleep(20 * time.Microsecond)
	}
	looks := 2 + int(time.Since(start)/restLeast)
	require.LessOrEqual(t, h.cuda.Count("asked")-asked, (looks+2)*2*handles, "of two agents with one piece each")
	h.app.MapVMM(0, handles, cuda.Granule, theirs.at)
	until(t, "it is registered again", func() bool { copied(); return r.Rails.Load() != 0 })
	h.moves(a, b, mine, theirs)
}

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

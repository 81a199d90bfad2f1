package verbs

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/internal/pattern"
	"gorail/test/cuda"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// PCI paths: the first device is next to GPU 0 below a switch, the second below another root complex.
const (
	nearSwitch = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/"
	gpu0       = nearSwitch + "0000:a0:00.0"
	gpu1       = "pci0000:c0/0000:c0:01.0/0000:a1:00.0"
	nic0       = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0"
	nic1       = "pci0000:80/0000:80:01.0/0000:81:00.0"
)

// gpus holds imitations of both libraries, an application with GPU memory, and options for rails.
type gpus struct {
	*testing.T
	ib   *imitation.Lib
	cuda *cuda.Lib
	app  *cuda.App
	o    Options
	far  int // the GPU with the peer's memory in between()
}

func newGPUs(t *testing.T) *gpus {
	g := &gpus{T: t, ib: imitation.Build(t), cuda: cuda.Build(t), far: 1}
	g.ib.Set("dmabuf", 1)
	g.app = cuda.NewApp(t, g.cuda.Path)
	g.o = options(t, g.ib, true)
	g.o.CUDAPath = g.cuda.Path
	sys := imitation.Sys(4, 4, true)
	imitation.OnPCI(sys, 0, nic0)
	imitation.OnPCI(sys, 1, nic1)
	imitation.OnPCI(sys, -1, gpu0)
	imitation.OnPCI(sys, -1, gpu1)
	g.o.Sys = sys
	t.Cleanup(func() { require.Zero(t, dmabufs(t), "descriptors left open") })
	return g
}

// dmabufs returns the number of dmabuf descriptors of this process.
func dmabufs(t testing.TB) (n int) {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range list {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "memfd:dmabuf") {
			n++
		}
	}
	return n
}

// alloc allocates GPU memory with random bytes. The end of the test frees it.
func (g *gpus) alloc(device int, size uint64) (at uint64, content []byte) {
	at = g.app.Alloc(device, cuda.Device, size)
	g.Cleanup(func() { g.app.Free(device, cuda.Device, at) })
	return at, g.fill(device, at, size)
}

func (g *gpus) fill(device int, at, size uint64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	g.app.Write(device, at, b)
	return b
}

// register calls RegisterVRAM. The end of the test closes the MR.
func (g *gpus) register(s *side, at, size uint64, device int) provider.GPUMemory {
	g.Helper()
	mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, size, device, option.PeersBoth)
	require.NoError(g, err)
	g.Cleanup(func() { require.NoError(g, mr.Close()) })
	return mr.(provider.GPUMemory)
}

// between copies bytes of two GPUs in both directions: one byte, a size that would be inline in host memory, and larger
// sizes.
func (g *gpus) between(a, b *side, near, far uint64, mine, theirs []byte, x, y provider.MR) {
	g.Helper()
	ep, _ := link(a, b)
	for i, n := range []uint64{1, 60, 5000, uint64(len(mine)) - 100} {
		seg := drive.Seg{Local: near + 7, Remote: y.Base() + 13, Len: n, Desc: x.Desc(), Key: y.Key(provider.Salt{})}
		require.NoError(g, a.d.RMA(ep.Core(), drive.Write, uint64(10+2*i), seg))
		a.until(len(a.done) + 1)
		copy(theirs[13:13+n], mine[7:7+n])
		require.Equal(g, theirs, g.app.Read(g.far, far, uint64(len(theirs))))
		seg.Local, seg.Remote = near+50, y.Base()
		require.NoError(g, a.d.RMA(ep.Core(), drive.Read, uint64(11+2*i), seg))
		a.until(len(a.done) + 1)
		copy(mine[50:50+n], theirs[:n])
		require.Equal(g, mine, g.app.Read(0, near, uint64(len(mine))))
	}
	for id, c := range a.done {
		require.Zero(g, c.Err, "operation %d", id)
	}
}

// GPU memory by dmabuf and by nvidia_peermem, of one handle and of several. The bytes are right. The CPU reads none of
// them: that would kill the process here.
func TestVRAM(t *testing.T) {
	for name, c := range map[string]struct {
		dmabuf, peermem, vmm bool
		how                  string
	}{
		"dmabuf":           {dmabuf: true, how: "dmabuf"},
		"dmabuf, handles":  {dmabuf: true, vmm: true, how: "dmabuf"},
		"both":             {dmabuf: true, peermem: true, how: "dmabuf"},
		"peermem":          {peermem: true, how: "nvidia_peermem"},
		"peermem, handles": {peermem: true, vmm: true, how: "nvidia_peermem"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGPUs(t)
			if !c.dmabuf {
				g.ib.Set("dmabuf", 0)
			}
			if c.peermem {
				g.ib.Peermem(g.cuda.Peermem())
			}
			a, b := newSide(t, g.o), newSide(t, g.o)
			const size = 3*cuda.Granule - 4000
			near, mine := g.alloc(0, size)
			var far uint64
			var theirs []byte
			if c.vmm {
				far = g.app.VMM(1, 3, cuda.Granule, true)
				t.Cleanup(func() { g.app.FreeVMM(1, 3, cuda.Granule, far) })
				theirs = g.fill(1, far, size)
			} else {
				far, theirs = g.alloc(1, size)
			}
			x, y := g.register(a, near, size, 0), g.register(b, far, size, 1)
			require.Equal(t, c.how, x.How())
			require.Equal(t, far, y.(provider.MR).Base())
			call, _ := x.Flush()
			require.Nil(t, call)
			require.Positive(t, g.cuda.Count("synced"))
			g.between(a, b, near, far, mine, theirs, x.(provider.MR), y.(provider.MR))
		})
	}
}

// A range within an allocation, not aligned to pages: nothing beyond the range is reachable.
func TestVRAMBounds(t *testing.T) {
	g := newGPUs(t)
	a, b := newSide(t, g.o), newSide(t, g.o)
	at, content := g.alloc(0, 1<<16)
	mr := g.register(b, at+5000, 9000, 0).(provider.MR)
	ep, _ := link(a, b)
	seg := drive.Seg{Local: drive.Addr(a.mem), Remote: mr.Base(), Len: 9000, Desc: a.mr.Desc(), Key: mr.Key(provider.Salt{})}
	require.NoError(t, a.d.RMA(ep.Core(), drive.Read, 1, seg))
	a.until(1)
	pattern.Same(t, content[5000:14000], a.mem[:9000])
	seg.Len++
	require.NoError(t, a.d.RMA(ep.Core(), drive.Write, 2, seg))
	a.until(2)
	require.Equal(t, syscall.EACCES, a.done[2].Err)
	pattern.Same(t, content, g.app.Read(0, at, 1<<16))
}

// Without dmabufs and without nvidia_peermem, one error has both reasons. The dmabuf reason is determined once.
func TestVRAMNeither(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(g *gpus)
		says string
		asks int // dmabuf exports
	}{
		"kernel":    {func(g *gpus) { g.ib.Set("dmabuf", 0) }, "Linux 5.12, rdma-core 34", 0},
		"driver":    {func(g *gpus) { g.cuda.Set("dmabuf", 0) }, "CUDA 11.7", 0},
		"no module": {func(g *gpus) { g.ib.FailMany("reg_dmabuf_mr", 1, 100, syscall.EOPNOTSUPP) }, "ibv_reg_dmabuf_mr of ", 2},
		"524":       {func(g *gpus) { g.ib.FailMany("reg_dmabuf_mr", 1, 100, 524) }, "errno 524", 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGPUs(t)
			c.set(g)
			s := newSide(t, g.o)
			if name == "no module" || name == "524" {
				c.set(g) // opening the rail has consumed one
			}
			at, _ := g.alloc(0, 1<<16)
			for range 3 {
				_, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
				require.ErrorIs(t, err, provider.ErrRegister)
				require.ErrorIs(t, err, provider.ErrNoVRAM)
				require.ErrorIs(t, err, syscall.EFAULT)
				for _, want := range []string{c.says, "verbs/hca0: memory of GPU 0 at", "as a dmabuf: ", "by address: ibv_reg_mr: ", "modprobe nvidia_peermem"} {
					require.ErrorContains(t, err, want)
				}
			}
			require.Equal(t, c.asks, g.cuda.Count("dmabufs"))
			g.ib.Peermem(g.cuda.Peermem()) // loaded later
			require.Equal(t, "nvidia_peermem", g.register(s, at, 1<<16, 0).How())
		})
	}
}

// The mapping depends on the distance between GPU and device: over PCIe, past C2C, behind one switch, else the
// platform's default. If device or driver does not support the PCIe mapping, the default is used.
func TestVRAMWay(t *testing.T) {
	g := newGPUs(t)
	g.ib.Set("devices", 2)
	open := opener(g.o)
	var rails []provider.Rail
	for range 2 {
		rails = append(rails, open(t))
		t.Cleanup(func() { require.NoError(t, rails[len(rails)-1].Close()); rails = rails[:len(rails)-1] })
	}
	at, _ := g.alloc(0, 1<<16)
	other, _ := g.alloc(1, 1<<16)
	for _, c := range []struct {
		rail, device int
		at           uint64
		distance     topo.Closeness
	}{{0, 0, at, topo.SameSwitch}, {0, 1, other, topo.OtherRoot}, {1, 0, at, topo.OtherRoot}, {1, 1, other, topo.OtherRoot}} {
		before := g.ib.Count("dmabufs_pcie")
		mr, err := rails[c.rail].(provider.VRAM).RegisterVRAM(c.at, 1<<16, c.device, option.PeersBoth)
		require.NoError(t, err)
		require.Equal(t, c.distance, mr.(provider.GPUMemory).Distance())
		require.Equal(t, c.distance <= topo.SamePort, g.ib.Count("dmabufs_pcie") > before)
		require.NoError(t, mr.Close())
	}
	for _, set := range []func(){func() { g.cuda.Set("dmabuf_pcie", 0) }, func() { g.cuda.Set("dmabuf_pcie", 1); g.ib.Fail("reg_dmabuf_mr", 1, 524) }} {
		set()
		mr, err := rails[0].(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
		require.NoError(t, err)
		require.Equal(t, "dmabuf", mr.(provider.GPUMemory).How())
		require.NoError(t, mr.Close())
	}
}

// Memory is freed and allocated again at the same address. Same reports the change. The registered region reaches the
// old memory, never the new.
func TestVRAMFreed(t *testing.T) {
	g := newGPUs(t)
	s := newSide(t, g.o)
	at := g.app.Alloc(0, cuda.Device, 1<<16)
	old := g.fill(0, at, 1<<16)
	mr := g.register(s, at, 1<<16, 0)
	require.NoError(t, mr.Same())
	g.app.Free(0, cuda.Device, at)
	require.Error(t, mr.Same())
	again, content := g.alloc(0, 1<<16)
	require.Equal(t, at, again)
	require.Error(t, mr.Same())
	fresh := g.register(s, at, 1<<16, 0)
	require.NoError(t, fresh.Same())
	reader := newSide(t, g.o)
	ep, _ := link(reader, s)
	for i, want := range map[provider.GPUMemory][]byte{mr: old, fresh: content} {
		reader.done = map[uint64]drive.Comp{}
		seg := drive.Seg{Local: drive.Addr(reader.mem), Remote: at, Len: 1 << 16, Desc: reader.mr.Desc(), Key: i.(provider.MR).Key(provider.Salt{})}
		require.NoError(t, reader.d.RMA(ep.Core(), drive.Read, 1, seg))
		reader.until(1)
		pattern.Same(t, want, reader.mem[:1<<16])
	}
}

// Each call of a registration fails once. The result is an error or the other method. Nothing stays open except what a
// rail keeps until Close.
func TestVRAMFaults(t *testing.T) {
	for _, call := range []string{"DeviceGet", "DeviceGetUuid", "DevicePrimaryCtxRetain", "CtxPushCurrent", "CtxGetStreamPriorityRange", "ModuleLoadDataEx",
		"ModuleGetFunction", "StreamCreateWithPriority", "PointerGetAttributes", "MemGetHandleForAddressRange"} {
		for n := 1; n <= 3; n++ {
			g := newGPUs(t)
			s := newSide(t, g.o)
			at, _ := g.alloc(0, 1<<16)
			g.cuda.Fail(call, n, cuda.OutOfMemory)
			mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
			if err == nil {
				require.NoError(t, mr.Close())
			}
			require.Zero(t, dmabufs(t), "%s, %d", call, n)
			g.cuda.Fail(call, 0, 0)
			mr, err = s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
			require.NoError(t, err, "%s, %d: afterwards", call, n)
			require.NoError(t, mr.Close())
		}
	}
	for _, call := range []string{"reg_dmabuf_mr", "dereg_mr"} {
		g := newGPUs(t)
		s := newSide(t, g.o)
		at, _ := g.alloc(0, 1<<16)
		g.ib.Fail(call, 1, syscall.EIO)
		mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
		if call == "dereg_mr" {
			require.NoError(t, err)
			require.ErrorIs(t, mr.Close(), syscall.EIO)
			require.NoError(t, mr.Close())
			continue
		}
		require.ErrorIs(t, err, syscall.EIO)
	}
}

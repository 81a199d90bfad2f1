package verbs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/topo"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

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
				_, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, access.Both)
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
		mr, err := rails[c.rail].(provider.VRAM).RegisterVRAM(c.at, 1<<16, c.device, access.Both)
		require.NoError(t, err)
		require.Equal(t, c.distance, mr.(provider.GPUMemory).Distance())
		require.Equal(t, c.distance <= topo.SamePort, g.ib.Count("dmabufs_pcie") > before)
		require.NoError(t, mr.Close())
	}
	for _, set := range []func(){func() { g.cuda.Set("dmabuf_pcie", 0) }, func() { g.cuda.Set("dmabuf_pcie", 1); g.ib.Fail("reg_dmabuf_mr", 1, 524) }} {
		set()
		mr, err := rails[0].(provider.VRAM).RegisterVRAM(at, 1<<16, 0, access.Both)
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
		seg := drive.Seg{Local: drive.Addr(reader.mem), Remote: at, Len: 1 << 16, Desc: reader.mr.Desc(), Key: i.(provider.MR).Key()}
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
			mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, access.Both)
			if err == nil {
				require.NoError(t, mr.Close())
			}
			require.Zero(t, dmabufs(t), "%s, %d", call, n)
			g.cuda.Fail(call, 0, 0)
			mr, err = s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, access.Both)
			require.NoError(t, err, "%s, %d: afterwards", call, n)
			require.NoError(t, mr.Close())
		}
	}
	for _, call := range []string{"reg_dmabuf_mr", "dereg_mr"} {
		g := newGPUs(t)
		s := newSide(t, g.o)
		at, _ := g.alloc(0, 1<<16)
		g.ib.Fail(call, 1, syscall.EIO)
		mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, access.Both)
		if call == "dereg_mr" {
			require.NoError(t, err)
			require.ErrorIs(t, mr.Close(), syscall.EIO)
			require.NoError(t, mr.Close())
			continue
		}
		require.ErrorIs(t, err, syscall.EIO)
	}
}

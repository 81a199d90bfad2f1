package ofi

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/test/cuda"
	"gorail/test/drive"
	"gorail/test/fabric"
	"gorail/test/verbs"
)

// gpus holds imitations of both libraries, and an application with GPU memory.
type gpus struct {
	*testing.T
	want []string // prefixes of the expected breaches
	cuda *cuda.Lib
	app  *cuda.App
	lib  string
	kind string
}

func newGPUs(t *testing.T, kind string, switches ...string) *gpus {
	g := &gpus{T: t, cuda: cuda.Build(t), lib: fabric.Build(t), kind: kind}
	breaches := filepath.Join(t.TempDir(), "breaches")
	t.Setenv(fabric.EnvConfig, fabric.Config(kind, 1, 1, switches...))
	t.Setenv(fabric.EnvBreaches, breaches)
	t.Setenv(fabric.EnvCUDA, g.cuda.Path)
	g.app = cuda.NewApp(t, g.cuda.Path)
	t.Cleanup(func() {
		got := fabric.Breaches(t, breaches)
		require.Len(t, got, len(g.want), "%v", got)
		for i, w := range g.want {
			require.True(t, strings.HasPrefix(got[i], w), got[i])
		}
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, fd := range list {
			to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
			require.NotContains(t, to, "memfd:dmabuf", "left open")
		}
	})
	return g
}

// open opens the first device.
func (g *gpus) open(hmem string) provider.Rail {
	g.Helper()
	sys := fstest.MapFS{}
	verbs.OnPCI(sys, -1, "pci0000:3a/0000:3a:01.0/0000:3b:00.0") // the device
	verbs.OnPCI(sys, -1, "pci0000:3a/0000:3a:01.0/0000:a0:00.0")
	verbs.OnPCI(sys, -1, "pci0000:90/0000:90:01.0/0000:a1:00.0")
	p := New(Options{LibraryPath: g.lib, CUDAPath: g.cuda.Path, HMEM: hmem, Sys: sys})
	prov, _, _ := strings.Cut(g.kind, "-")
	devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{prov}})
	require.NoError(g, err)
	require.Len(g, devs, 1)
	r, err := p.Open(devs[0])
	require.NoError(g, err)
	g.Cleanup(func() { require.NoError(g, r.Close()) })
	return r
}

func (g *gpus) alloc(device int, size uint64) uint64 {
	at := g.app.Alloc(device, cuda.Device, size)
	g.Cleanup(func() { g.app.Free(device, cuda.Device, at) })
	return at
}

func (g *gpus) fill(device int, at, size uint64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	g.app.Write(device, at, b)
	return b
}

// GPU memory on each side, registered by dmabuf and by address, on each fabric. WRITE and READ copy the bytes, although
// the CPU cannot read the GPU memory.
func TestVRAM(t *testing.T) {
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		for name, c := range map[string]struct {
			switches []string
			how      string
			handles  bool
		}{
			"dmabuf":            {nil, "dmabuf", false},
			"dmabuf, handles":   {nil, "dmabuf", true},
			"no p2p option":     {[]string{"p2p=2"}, "dmabuf", false},
			"address":           {[]string{"mr_dmabuf=0"}, "FI_HMEM_CUDA", true},
			"libfabric of 1.18": {[]string{"version=65554"}, "FI_HMEM_CUDA", false},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				g := newGPUs(t, kind, c.switches...)
				const size = 2*cuda.Granule - 3000
				near := g.alloc(0, size)
				var far uint64
				if c.handles {
					far = g.app.VMM(1, 2, cuda.Granule, false)
					t.Cleanup(func() { g.app.FreeVMM(1, 2, cuda.Granule, far) })
				} else {
					far = g.alloc(1, size)
				}
				mine, theirs := g.fill(0, near, size), g.fill(1, far, size)
				a, b := g.open(HMEMAuto), g.open(HMEMAuto)
				register := func(r provider.Rail, at uint64, device int) provider.MR {
					m, err := r.(provider.VRAM).RegisterVRAM(at, size, device, option.PeersBoth)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, m.Close()) })
					require.Equal(t, c.how, m.(provider.GPUMemory).How())
					return m
				}
				x, y := register(a, near, 0), register(b, far, 1)
				require.Equal(t, topo.SameSwitch, x.(provider.GPUMemory).Distance())
				require.Equal(t, topo.OtherRoot, y.(provider.GPUMemory).Distance())
				da, db := drive.New(a.Core()), drive.New(b.Core())
				ep, err := a.OpenEndpoint()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, ep.Close()) })
				other, err := b.OpenEndpoint()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				require.NoError(t, ep.Connect(other.Addr()))
				require.NoError(t, other.Connect(ep.Addr()))
				run := func(op int, seg drive.Seg) {
					for err := error(syscall.EAGAIN); err != nil; {
						if err = da.RMA(ep.Core(), op, 1, seg); err != nil {
							require.ErrorIs(t, err, syscall.EAGAIN)
						}
						_, _ = db.Poll(8)
					}
					for n := 0; n == 0; {
						done, err := da.Poll(8)
						require.NoError(t, err)
						_, err = db.Poll(8)
						require.NoError(t, err)
						if n = len(done); n > 0 {
							require.Zero(t, done[0].Err)
						}
					}
				}
				for _, n := range []uint64{30, 8000, size - 100} {
					seg := drive.Seg{Local: near + 7, Remote: y.Base() + 13, Len: n, Desc: x.Desc(), Key: y.Key(provider.Salt{})}
					run(drive.Write, seg)
					copy(theirs[13:13+n], mine[7:7+n])
					require.Equal(t, theirs, g.app.Read(1, far, size))
					seg.Local, seg.Remote = near+50, y.Base()
					run(drive.Read, seg)
					copy(mine[50:50+n], theirs[:n])
					require.Equal(t, mine, g.app.Read(0, near, size))
				}
			})
		}
	}
}

// If a requirement is missing, one error names it. Host memory can still be registered.
func TestVRAMNot(t *testing.T) {
	for name, c := range map[string]struct {
		switches []string
		hmem     string
		idle     bool // this process has no CUDA context when the rail is opened
		lasting  bool
		says     []string
	}{
		"no FI_HMEM":   {[]string{"hmem=0"}, HMEMAuto, false, true, []string{"offers no FI_HMEM", "libfabric 2.1"}},
		"no p2p":       {[]string{"p2p=0"}, HMEMOn, false, true, []string{"FI_OPT_FI_HMEM_P2P", "operation not supported"}},
		"switched off": {nil, HMEMOff, false, true, []string{"option fi_hmem=off"}},
		"not in use":   {nil, HMEMAuto, true, true, []string{"no CUDA context was in this process", "fi_hmem=on"}},
		"neither way":  {[]string{"mr_dmabuf=0", "mr_cuda=0"}, HMEMAuto, false, true, []string{"FI_MR_DMABUF", "FI_HMEM_CUDA", "modprobe nvidia_peermem"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGPUs(t, "efa", c.switches...)
			var at uint64
			if !c.idle {
				at = g.alloc(0, 1<<16)
			}
			r := g.open(c.hmem)
			if c.idle {
				require.False(t, gpu.InUse(g.cuda.Path))
				at = g.alloc(0, 1<<16)
				require.True(t, gpu.InUse(g.cuda.Path))
			}
			for range 2 {
				_, err := r.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
				require.ErrorIs(t, err, provider.ErrRegister)
				require.ErrorIs(t, err, provider.ErrNoVRAM)
				for _, want := range append(c.says, "efa/rdmap0-rdm: memory of GPU 0 at ") {
					require.ErrorContains(t, err, want)
				}
			}
			mem := drive.Alloc(1 << 16)
			m, err := r.Register(drive.Addr(mem), 1<<16, 1, option.PeersBoth)
			require.NoError(t, err)
			require.NoError(t, m.Close())
		})
	}
	t.Run("sockets", func(t *testing.T) {
		devs, err := New(Options{HMEM: HMEMOn}).Discover(context.Background(), provider.Filter{Fabrics: []string{"tcp;ofi_rxm"}, Devices: []string{"lo"}})
		if err != nil {
			t.Skip(err)
		}
		r, err := New(Options{}).Open(devs[0])
		require.NoError(t, err)
		_, takes := r.(provider.VRAM)
		require.False(t, takes, "memory of GPUs does not go over sockets by itself")
		require.NoError(t, r.Close())
	})
}

// fi_hmem=on works without a CUDA context. After a single failure nothing stays open.
func TestVRAMFaults(t *testing.T) {
	g := newGPUs(t, "cxi", "mr_max=1")
	r := g.open(HMEMOn)
	at := g.alloc(0, 1<<16)
	for _, call := range []string{"PointerGetAttributes", "MemGetHandleForAddressRange", "CtxPushCurrent"} {
		g.cuda.Fail(call, 1, cuda.OutOfMemory)
		if m, err := r.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth); err == nil {
			require.NoError(t, m.Close())
		}
		g.cuda.Fail(call, 0, 0)
	}
	m, err := r.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
	require.NoError(t, err)
	require.Equal(t, "dmabuf", m.(provider.GPUMemory).How())
	_, err = r.(provider.VRAM).RegisterVRAM(at, 1<<15, 0, option.PeersBoth)
	require.ErrorIs(t, err, provider.ErrRegister)
	require.NotErrorIs(t, err, provider.ErrNoVRAM, "there may be room the next time")
	require.ErrorIs(t, r.Close(), syscall.EBUSY)
	require.NoError(t, m.Close())
}

// If the caller chooses keys, keys of GPU memory are random, not consecutive.
func TestVRAMKeysAreRandom(t *testing.T) {
	g := newGPUs(t, "cxi")
	r := g.open(HMEMOn)
	require.False(t, r.Caps().ProviderKeys)
	at := g.alloc(0, 64<<12)
	var last, all, none uint64
	all = 1<<(8*r.Caps().KeySize) - 1
	for i := range uint64(64) {
		m, err := r.(provider.VRAM).RegisterVRAM(at+i<<12, 1<<12, 0, option.PeersBoth)
		require.NoError(t, err)
		defer m.Close()
		if i > 0 {
			require.NotContains(t, []uint64{last - 1, last + 1}, m.Key(provider.Salt{}), "counted")
		}
		last, all, none = m.Key(provider.Salt{}), all&m.Key(provider.Salt{}), none|m.Key(provider.Salt{})
	}
	require.Zero(t, all, "bits that are set in every key")
	require.EqualValues(t, 1<<(8*r.Caps().KeySize)-1, none, "bits that are set in a key")
}

// The imitation detects a post of GPU memory without its descriptor.
func TestVRAMWithoutDescriptor(t *testing.T) {
	g := newGPUs(t, "efa")
	g.want = []string{"desc"}
	at := g.alloc(0, 1<<16)
	r := g.open(HMEMAuto)
	m, err := r.(provider.VRAM).RegisterVRAM(at, 1<<16, 0, option.PeersBoth)
	require.NoError(t, err)
	defer m.Close()
	ep, err := r.OpenEndpoint()
	require.NoError(t, err)
	defer ep.Close()
	require.NoError(t, ep.Connect(ep.Addr()))
	require.ErrorIs(t, drive.New(r.Core()).RMA(ep.Core(), drive.Write, 1, drive.Seg{Local: at, Remote: at + 4096, Len: 64, Key: m.Key(provider.Salt{})}), syscall.EINVAL)
}

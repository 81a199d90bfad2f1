package verbs

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/internal/pattern"
	"gorail/test/cuda"
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
	mr, err := s.rail.(provider.VRAM).RegisterVRAM(at, size, device, access.Both)
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
		seg := drive.Seg{Local: near + 7, Remote: y.Base() + 13, Len: n, Desc: x.Desc(), Key: y.Key()}
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
	seg := drive.Seg{Local: drive.Addr(a.mem), Remote: mr.Base(), Len: 9000, Desc: a.mr.Desc(), Key: mr.Key()}
	require.NoError(t, a.d.RMA(ep.Core(), drive.Read, 1, seg))
	a.until(1)
	pattern.Same(t, content[5000:14000], a.mem[:9000])
	seg.Len++
	require.NoError(t, a.d.RMA(ep.Core(), drive.Write, 2, seg))
	a.until(2)
	require.Equal(t, syscall.EACCES, a.done[2].Err)
	pattern.Same(t, content, g.app.Read(0, at, 1<<16))
}

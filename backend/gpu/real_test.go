package gpu_test

import (
	"math/rand"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// TestRealScatter compares more than 10,000 layouts with the expected memory, by kernel and by copy engine.
func TestRealScatter(t *testing.T) {
	r := openReal(t)
	i, err := r.drv.Device(0)
	require.NoError(t, err)
	refusal, err := r.drv.Kernel(0)
	require.NoError(t, err)
	require.Empty(t, refusal)
	t.Log(i.Name, r.drv.Version(), r.drv.Devices())
	rnd := rand.New(rand.NewSource(3))
	for round := range 60 {
		n := 1 + rnd.Intn(400)
		if round%10 == 0 {
			n = 10000
		}
		how := gpu.Kernel
		if round%6 == 5 {
			how = gpu.Engine
		}
		r.scatter(0, r.second(), round%2 == 0, n, how)
		r.scatter(0, 0, round%2 == 1, n, gpu.Auto)
	}
}

// TestRealPeer: two processes, by IPC handle and by file descriptors, in both directions, and after the peer was killed.
func TestRealPeer(t *testing.T) {
	for _, kind := range []string{"ipc", "vmm"} {
		t.Run(kind, func(t *testing.T) {
			r := openReal(t)
			p := startPeer(t, r.path)
			const size = 16 * cuda.Granule
			a := ask{Do: "alloc", Device: r.second(), Size: size}
			if kind == "vmm" {
				a = ask{Do: "alloc", Kind: "vmm", Device: r.second(), N: 16, Size: cuda.Granule}
			}
			got := p.ask(a)
			m, importer, err := r.drv.Map(share(got.Share), 0)
			require.NoError(t, err)
			if require.Equal(t, kind == "vmm", importer); importer {
				addPieces(t, p, m, got.At, size, 16, 5)
			}
			local := r.alloc(0, cuda.Device, size)
			j := r.job(r.stream(0, r.second()))
			for i, how := range []gpu.How{gpu.Kernel, gpu.Engine, gpu.Auto} {
				in := noise(int64(i), size)
				r.app.Write(0, local, in)
				const n = 1000
				ops := r.drv.Ops(n)
				for k := range ops {
					from, to := uint64(k)*size/n, uint64(k+1)*size/n
					ops[k] = gpu.Op{Local: local + from, Remote: got.At + from, Len: to - from}
				}
				w := gpu.Work{Ops: ops, Write: true, Delta: m.At(got.At) - got.At, How: how}
				r.run(j, w)
				pattern.Same(t, in, p.ask(ask{Do: "read", Device: r.second(), At: got.At, Size: size}).Data)
				r.app.Write(0, local, make([]byte, size))
				w.Write = false
				r.run(j, w)
				pattern.Same(t, in, r.app.Read(0, local, size))
				if how == gpu.Auto {
					p.kill()
					r.run(j, w)
				}
				r.drv.FreeOps(ops)
			}
			require.NoError(t, m.Close())
		})
	}
}

// TestRealWhat checks the attributes that this package relies on.
func TestRealWhat(t *testing.T) {
	r := openReal(t)
	dev, vmm, host := r.alloc(0, cuda.Device, mib), r.vmm(0, 3, cuda.Granule, true), r.alloc(0, cuda.Host, mib)
	closed, pool := r.vmm(0, 2, cuda.Granule, false), r.alloc(0, cuda.Pool, mib)
	for at, want := range map[uint64]struct {
		kind   gpu.Kind
		pieces int
		why    error
	}{dev: {gpu.DeviceMemory, 1, nil}, vmm + cuda.Granule/2: {gpu.VMMMemory, 2, nil}, host: {gpu.HostMemory, 1, gpu.Pinned},
		closed + cuda.Granule/2: {gpu.VMMMemory, 2, gpu.NoHandle}, pool: {gpu.PoolMemory, 1, gpu.Pool}} {
		m := r.what(at, mib)
		if want.pieces == 2 {
			m = r.what(at, cuda.Granule)
		}
		require.Equal(t, want.kind, m.Kind)
		require.Equal(t, want.pieces, m.Pieces, want.kind)
		require.Equal(t, want.why, m.NotShared, want.kind)
	}
	fresh := r.app.Alloc(0, cuda.Device, mib)
	m := r.what(fresh, mib)
	r.app.Free(0, cuda.Device, fresh)
	require.ErrorIs(t, r.drv.Same(fresh, m.Buffer), gpu.Changed)
}

// TestRealDirect checks a real driver for other devices: dmabufs over both paths, of a part of an allocation and of several
// handles. The driver says if writes need a flush, and Flush works in both cases.
func TestRealDirect(t *testing.T) {
	r := openReal(t)
	is, err := r.drv.Device(0)
	require.NoError(t, err)
	require.True(t, gpu.InUse(r.path))
	t.Log(is.Name, is.PCI, "dmabuf:", is.DMABuf, "writes need a flush:", is.Flush)
	require.NoError(t, r.drv.Flush(0))
	at := r.alloc(0, cuda.Device, 3*mib)
	vmm := r.vmm(0, 3, cuda.Granule, false)
	for _, m := range []struct{ at, from, size uint64 }{{at, at + 4097, mib}, {at, at, 3 * mib}, {vmm, vmm + cuda.Granule - 100, cuda.Granule + 200}} {
		mem := r.what(m.at, 3*mib)
		r.drv.SyncMemops(mem)
		for _, byPCIe := range []bool{false, true} {
			fd, offset, err := r.drv.DMABuf(mem, m.from, m.size, byPCIe)
			if !is.DMABuf {
				require.ErrorIs(t, err, gpu.NoDMABuf)
				continue
			}
			require.NoError(t, err, "by PCIe: %v", byPCIe)
			require.Equal(t, m.from%uint64(os.Getpagesize()), offset)
			require.NoError(t, syscall.Close(fd))
		}
	}
}

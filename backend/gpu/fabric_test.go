package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// TestFabric: memory with only a fabric handle, of another process and of this one. If it cannot be shared, the error has the
// reason.
func TestFabric(t *testing.T) {
	t.Setenv("GORAIL_TEST_GPU_FABRIC", "1")
	r := open(t)
	r.lib.Set("fabric", 1)
	p := startPeer(t, r.lib.Path)
	const size = 2 * cuda.Granule
	got := p.ask(ask{Do: "alloc", Kind: "fabric", Device: 1, N: 1, Size: size})
	local := r.alloc(0, cuda.Device, size)
	in := noise(1, size)
	r.app.Write(0, local, in)
	j, ops := r.job(r.stream(0, 1)), r.drv.Ops(300)
	defer r.drv.FreeOps(ops)
	write := func(m *gpu.Map, at uint64) {
		for i := range ops {
			ops[i] = gpu.Op{Local: local + uint64(i)*10000, Remote: at + uint64(i)*10000, Len: 9000}
		}
		r.run(j, gpu.Work{Ops: ops, Write: true, Delta: m.At(at) - at})
	}
	m, importer, err := r.drv.Map(share(got.Share), 0)
	require.NoError(t, err)
	require.False(t, importer)
	write(m, got.At)
	there := p.ask(ask{Do: "read", Device: 1, At: got.At, Size: size}).Data
	pattern.Same(t, in[20000:29000], there[20000:29000])
	again, _, err := r.drv.Map(share(got.Share), 0)
	require.NoError(t, err)
	require.Equal(t, 1, r.lib.Count("imports"))
	require.NoError(t, again.Close())
	require.NoError(t, m.Close())

	own := r.app.FabricVMM(1, 1, size)
	defer r.app.FreeVMM(1, 1, size, own)
	is := r.what(own, size)
	require.True(t, is.Fabric())
	s, err := r.drv.Share(is)
	require.NoError(t, err)
	m, _, err = r.drv.Map(s, 0)
	require.NoError(t, err)
	write(m, own)
	pattern.Same(t, in[20000:29000], r.app.Read(1, own, size)[20000:29000])
	require.NoError(t, m.Close())

	r.lib.Fail("MemExportToShareableHandle", 1, cuda.NotPermitted)
	_, err = r.drv.Share(is)
	require.ErrorContains(t, err, "CUDA_ERROR_NOT_PERMITTED")
	two := r.app.FabricVMM(1, 2, size)
	defer r.app.FreeVMM(1, 2, size, two)
	require.ErrorIs(t, r.what(two, 2*size).NotShared, gpu.Fabrics)
	require.NoError(t, r.what(two, size).NotShared)
	r.lib.Set("fabric", 0)
	require.ErrorIs(t, r.what(own, size).NotShared, gpu.NoHandle)
	_, _, err = r.drv.Map(share(got.Share), 0)
	require.ErrorIs(t, err, gpu.Refused)
}

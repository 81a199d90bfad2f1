package gpu_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

// TestHost: which host memory GPUs of other hosts can map. Other host memory costs a question at most, and nothing where no driver is loaded.
func TestHost(t *testing.T) {
	r := open(t)
	r.lib.Set("fabric", 1)
	host := func(fabric bool) uint64 {
		at := r.app.HostVMM(1, 2, cuda.Granule, fabric)
		r.Cleanup(func() { r.app.FreeVMM(1, 2, cuda.Granule, at) })
		return at
	}
	page := make([]byte, 4096)
	pageable := uint64(uintptr(unsafe.Pointer(&page[0])))
	egm, private, pinned, vram := host(true), host(false), r.alloc(0, cuda.Host, mib), r.vmm(0, 1, cuda.Granule, true)
	first, err := r.drv.Device(0)
	require.NoError(t, err)
	second, err := r.drv.Device(1)
	require.NoError(t, err)
	both := map[[16]byte]bool{first.UUID: true, second.UUID: true}
	for name, c := range map[string]struct {
		at, size  uint64
		knows, is bool
	}{
		"EGM": {egm, 2 * cuda.Granule, true, true}, "a part of it": {egm + cuda.Granule + 1, 5, true, true}, "beyond its end": {egm, 2*cuda.Granule + 1, true, false},
		"without a handle": {private, cuda.Granule, true, false}, "pinned": {pinned, mib, true, false}, "pageable": {pageable, 4096, false, false},
		"of a GPU": {vram, cuda.Granule, false, false},
	} {
		require.Equal(t, c.knows, gpu.KnowsHost(r.path, c.at), name)
		m, is := r.drv.Host(c.at, c.size, both)
		require.Equal(t, c.is, is, name)
		if is {
			require.Equal(t, 1, m.Device, name)
			require.NoError(t, r.drv.Lendable(&m), name)
		}
	}
	m, is := r.drv.Host(egm, cuda.Granule, map[[16]byte]bool{first.UUID: true})
	require.True(t, is)
	require.Equal(t, -1, m.Device, "GPU 0 may not access it")
	before := r.lib.Count("asked")
	require.False(t, gpu.KnowsHost(r.path, pageable))
	require.Equal(t, before+1, r.lib.Count("asked"))
	require.False(t, gpu.KnowsHost("libcuda-that-is-not-loaded.so", egm))
}

// BenchmarkKnowsHost is what a registration of other host memory pays on a machine of a rack.
func BenchmarkKnowsHost(b *testing.B) {
	lib := cuda.Build(b)
	d, err := gpu.Open(lib.Path)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Close()) }()
	page := make([]byte, 4096)
	for b.Loop() {
		gpu.KnowsHost(lib.Path, uint64(uintptr(unsafe.Pointer(&page[0]))))
	}
}

package verbs

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/cuda"
	"gorail/test/drive"
)

// TestMemoryHere: memory is registered with the first device and pinned. Its dmabuf support is detected, whether present or not.
func TestMemoryHere(t *testing.T) {
	if os.Getenv("GORAIL_TEST_VERBS") == "" {
		t.Skip("set GORAIL_TEST_VERBS=1 to use this machine's devices")
	}
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	prov := New(Options{IB: opts.IB})
	devs, err := prov.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	opened, err := prov.Open(devs[0])
	require.NoError(t, err)
	rail := opened.(*rail)
	require.True(t, rail.Caps().PinsMemory)
	mem := drive.Alloc(1 << 16)
	mr, err := rail.Register(drive.Addr(mem), 1<<16, 0, option.PeersBoth)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	_, err = rail.RegisterDMABuf(-1, 0, 4096, 0, option.PeersBoth)
	want := syscall.EOPNOTSUPP
	if canDMABuf(rail) {
		want = syscall.EBADF
	}
	require.ErrorIs(t, err, want)
	t.Log("dmabuf:", canDMABuf(rail), err)
	require.NoError(t, rail.Close())
}

// TestVRAMHere registers memory of this machine's GPUs with each device, and copies bytes in both directions. The
// connection goes from the device to itself, with the next GPU at the other end.
func TestVRAMHere(t *testing.T) {
	driver := os.Getenv("GORAIL_TEST_CUDA")
	if os.Getenv("GORAIL_TEST_VERBS") == "" || driver == "" {
		t.Skip("set GORAIL_TEST_VERBS=1 and GORAIL_TEST_CUDA=libcuda.so.1 to use this machine's devices and GPUs")
	}
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	o := Options{IB: opts.IB, CUDAPath: driver}
	devs, err := New(o).Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	d, err := gpu.Open(driver)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	second := min(1, d.Devices()-1)
	for _, dev := range devs {
		t.Run(dev.Name, func(t *testing.T) {
			g := &gpus{T: t, app: cuda.NewApp(t, driver)}
			a, b := sideOn(t, o, dev), sideOn(t, o, dev)
			const size = 3*cuda.Granule - 4000
			near, mine := g.alloc(0, size)
			far, theirs := g.alloc(second, size)
			x, y := g.register(a, near, size, 0), g.register(b, far, size, second)
			call, _ := x.Flush()
			t.Log("how:", x.How(), "distance:", x.Distance(), y.Distance(), "flush:", call != nil)
			g.far = second
			g.between(a, b, near, far, mine, theirs, x.(provider.MR), y.(provider.MR))
		})
	}
}

package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/test/cuda"
)

// TestBounceBuffersLater: a first registration on a GPU waits for no pinned memory. What an endpoint needs is there before it, or it is an error,
// and the next one is made.
func TestBounceBuffersLater(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	const size = 1 << 20
	at := [2]uint64{app.Alloc(0, cuda.Device, size), app.Alloc(1, cuda.Device, size)}
	r := openLo(t, Options{CUDAPath: lib.Path})
	rights := option.PeersBoth

	lib.FailMany("MemHostAlloc", 1, 1000, cuda.OutOfMemory)
	first, err := r.RegisterVRAM(at[0], size, 0, rights)
	require.NoError(t, err)
	_, err = r.OpenEndpoint()
	require.ErrorContains(t, err, "bounce buffers of GPU 0")
	require.NoError(t, first.Close())
	e, err := r.OpenEndpoint()
	require.NoError(t, err, "the memory is gone")
	require.NoError(t, e.Close())
	first, err = r.RegisterVRAM(at[0], size, 0, rights)
	require.NoError(t, err)
	lib.FailMany("MemHostAlloc", 0, 0, 0)
	e, err = r.OpenEndpoint()
	require.NoError(t, err)
	require.Positive(t, lib.Count("hosts"))

	lib.FailMany("MemHostAlloc", 1, 1000, cuda.OutOfMemory)
	_, err = r.RegisterVRAM(at[1], size, 1, rights)
	require.ErrorContains(t, err, "bounce buffers", "there is an endpoint")
	other, err := r.OpenEndpoint()
	require.NoError(t, err, "of other peers, while no memory of that GPU is registered")
	require.NoError(t, other.Close())
	lib.FailMany("MemHostAlloc", 0, 0, 0)
	second, err := r.RegisterVRAM(at[1], size, 1, rights)
	require.NoError(t, err)

	require.NoError(t, e.Close())
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, r.Close())
	for i := range at {
		app.Free(i, cuda.Device, at[i])
	}
}

package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
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

// TestTranslatingHoldsNothing: while the driver translates the kernels, an endpoint and a region of a GPU wait for it. The rail does not: the
// engine's sweeper looks at it, and memory comes and goes.
func TestTranslatingHoldsNothing(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	const size = 1 << 20
	at := [2]uint64{app.Alloc(0, cuda.Device, size), app.Alloc(1, cuda.Device, size)}
	r := openLo(t, Options{CUDAPath: lib.Path})
	lib.Set("compiling", 1)
	t.Cleanup(func() { lib.Set("compiling", 0) })
	first, err := r.RegisterVRAM(at[0], size, 0, option.PeersBoth)
	require.NoError(t, err)
	opened, answers := make(chan error, 1), make(chan struct{})
	var e provider.Endpoint
	go func() {
		var err error
		e, err = r.OpenEndpoint()
		opened <- err
	}()
	go func() {
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
			r.Warnings()
		}
		second, err := r.RegisterVRAM(at[1], size, 1, option.PeersBoth) // there is no endpoint yet
		if err == nil {
			err = second.Close()
		}
		if err == nil {
			close(answers)
		}
	}()
	select {
	case <-answers:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the rail waits for the driver")
	}
	require.Empty(t, opened)
	lib.Set("compiling", 0)
	require.NoError(t, <-opened)
	require.NoError(t, e.Close())
	require.NoError(t, first.Close())
	require.NoError(t, r.Close())
	for i := range at {
		app.Free(i, cuda.Device, at[i])
	}
}

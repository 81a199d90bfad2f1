package engine

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// TestVRAMNoKernel uses a driver that does not load the copy kernel. Transfers copy all the same. The log has one line per GPU.
func TestVRAMNoKernel(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	lib := cuda.Build(t)
	lib.Set("jit", cuda.JITOff)
	app := cuda.NewApp(t, lib.Path)
	h := onHost(t)
	h.params = append(h.params, "cuda_path", lib.Path)
	a := h.agent("alice")
	require.NoError(t, a.LoadConn("alice", a.Conn()))
	var list []Desc
	for i := range 5 {
		at := app.Alloc(i/4, cuda.Device, size)
		defer app.Free(i/4, cuda.Device, at)
		id, err := a.Register(at, size, uint64(i/4), region.VRAM, nil)
		require.NoError(t, err)
		list = append(list, Desc{Addr: at, Len: size, Dev: uint64(i / 4), MD: unsafe.Pointer(&metaObject{region: id})})
	}
	want := bytes.Repeat([]byte("gorail! "), size/8)
	app.Write(0, list[0].Addr, want)
	app.Write(0, list[1].Addr, want)
	x := a.prep(transfer.Write, list[:2], list[2:4], "alice")
	x.run()
	require.NoError(t, a.Release(x.handle))
	pattern.Same(t, want, app.Read(0, list[2].Addr, size))
	pattern.Same(t, want, app.Read(0, list[3].Addr, size))
	require.Zero(t, lib.Count("launches"))
	require.NoError(t, a.Close())
	for gpu := range 2 {
		require.Equal(t, 1, strings.Count(h.log.String(), fmt.Sprintf(`level=INFO msg="GPU %d (`, gpu)), "%s", h.log)
	}
	require.Equal(t, 2, strings.Count(h.log.String(), "does not take the copy kernel (CUDA_ERROR_JIT_COMPILATION_DISABLED)"), "%s", h.log)
}

// TestVRAMRenewedMeanwhile renews the registration of GPU memory, as after a free without deregistration. Transfers over that
// memory are prepared and posted meanwhile. Their results do not matter: the test is for the race detector.
func TestVRAMRenewedMeanwhile(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	lib := cuda.Build(t)
	lib.Set("late", 0)
	app := cuda.NewApp(t, lib.Path)
	h := onHost(t)
	h.params = append(h.params, "cuda_path", lib.Path)
	a := h.agent("alice")
	register := func(at uint64) Desc {
		id, err := a.Register(at, size, 0, region.VRAM, nil)
		require.NoError(t, err)
		return Desc{Addr: at, Len: size, MD: unsafe.Pointer(&metaObject{region: id})}
	}
	at, to := app.Alloc(0, cuda.Device, size), app.Alloc(0, cuda.Device, size)
	from, target := register(at), register(to)
	require.NoError(t, a.LoadConn("alice", a.Conn()))
	x, _, err := a.Prep(transfer.Write, []Desc{from}, []Desc{target}, "alice")
	require.NoError(t, err)
	_, err = a.Post(x, false, nil)
	require.NoError(t, err)
	rec, err := a.transfers.Get(x)
	require.NoError(t, err)
	until(t, "the first transfer ends", func() bool { return !rec.Slot().Running() }) // all that it needs of GPUs is there now
	require.NoError(t, a.Release(x))
	var other sync.WaitGroup
	var posted atomic.Int32
	done := make(chan struct{})
	other.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			x, _, err := a.Prep(transfer.Write, []Desc{from}, []Desc{target}, "alice")
			if err != nil {
				continue
			}
			_, _ = a.Post(x, false, nil)
			posted.Add(1)
			_ = a.Release(x)
		}
	})
	r := a.regions.Regions.Get((*metaObject)(from.MD).region)
	for end := time.Now().Add(patience); posted.Load() < 100; {
		require.True(t, time.Now().Before(end), "the goroutine posts no transfer")
		a.regions.Renew(r)
		register(at)
	}
	close(done)
	other.Wait()
	require.NoError(t, a.Close())
	app.Free(0, cuda.Device, at)
	app.Free(0, cuda.Device, to)
}

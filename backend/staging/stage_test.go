package staging

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// bytes returns the contents of a ring. The application reads GPU memory.
func (r *Ring) bytes(app *cuda.App) []byte {
	if r.device != Host {
		return app.Read(r.device, r.addr, r.size)
	}
	return unsafe.Slice(unsafe.SliceData(r.mem), r.size)
}

// TestCopy copies pieces of all sizes and alignments to the ring and back, in host memory and on the GPU. At the end no
// resource is left open.
func TestCopy(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Auto)
	const size = 1 << 20
	from, to := app.Alloc(1, cuda.Device, size), app.Alloc(1, cuda.Device, size)
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, device := range []int{Host, 1} {
		ring, err := c.Ring(device, 1, size)
		require.NoError(t, err)
		for range 20 {
			in := noise(rnd.Uint64(), size)
			app.Write(1, from, in)
			app.Write(1, to, make([]byte, size))
			var pieces, back []Piece
			want := make([]byte, size)
			at, sum := uint64(0), uint64(0)
			for at < size-5000 && len(pieces) < 500 {
				n := 1 + rnd.Uint64N(4096)
				pieces, back = append(pieces, Piece{from + at, n}), append(back, Piece{to + at, n})
				copy(want[at:at+n], in[at:])
				at += n + rnd.Uint64N(900)
				sum += n
			}
			off := rnd.Uint64N(size - sum + 1)
			require.NoError(t, c.Copy(ring, ring.Addr()+off, 1, pieces, true, Ends{}))
			at = off
			got := ring.bytes(app)
			for _, p := range pieces {
				require.Equal(t, in[p.Addr-from:p.Addr-from+p.Len], got[at:at+p.Len])
				at += p.Len
			}
			require.NoError(t, c.Copy(ring, ring.Addr()+off, 1, back, false, Ends{}))
			pattern.Same(t, want, app.Read(1, to, size))
		}
		require.NoError(t, ring.Free())
	}
	app.Free(1, cuda.Device, from)
	app.Free(1, cuda.Device, to)
	require.NoError(t, c.Close())
}

// TestStopped: a stopped copy has ended when Copy returns, and the stream still works.
func TestStopped(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Auto)
	const size = 8 << 20
	at := app.Alloc(0, cuda.Device, size)
	ring, err := c.Ring(Host, 0, size)
	require.NoError(t, err)
	var pieces []Piece
	for off := uint64(0); off < size; off += 64 {
		pieces = append(pieces, Piece{at + off, 64})
	}
	for i := range 6 {
		stop := make(chan struct{})
		if i == 0 {
			close(stop)
		} else {
			go close(stop)
		}
		if err := c.Copy(ring, ring.Addr(), 0, pieces, true, Ends{Stop: stop}); err != nil {
			require.ErrorIs(t, err, gpu.Cancelled)
		}
	}
	require.NoError(t, c.Copy(ring, ring.Addr(), 0, pieces, true, Ends{}))
	require.NoError(t, ring.Free())
	app.Free(0, cuda.Device, at)
	require.NoError(t, c.Close())
}

// TestCheck: Check accepts GPU memory and names the mistake for other ranges.
func TestCheck(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Auto)
	at := app.Alloc(1, cuda.Device, 1<<20)
	require.NoError(t, c.Check(at, 1<<20, 1))
	for _, e := range []struct {
		addr, size uint64
		device     int
		says       string
	}{
		{at, 1 << 20, 0, "memory is on GPU 1, the descriptor's device id says 0"},
		{at, 1 << 20, 9, "there is no GPU 9: this process sees 2"},
		{at, 1 << 30, 1, "in several allocations, or not wholly in one"},
		{uint64(uintptr(unsafe.Pointer(&noise(1, 100)[0]))), 100, 1, "the memory is pageable host memory"},
	} {
		err := c.Check(e.addr, e.size, e.device)
		if e.device < 2 {
			require.ErrorIs(t, err, provider.ErrNotThere)
		}
		require.ErrorContains(t, err, e.says)
	}
	app.Free(1, cuda.Device, at)
	require.NoError(t, c.Close())
	err := New("/nowhere/libcuda.so.1", gpu.Auto).Check(at, 1, 0)
	require.True(t, gpu.Is(err, gpu.NoLibrary), err)
	require.NotErrorIs(t, err, provider.ErrNotThere)
}

// TestFailures: after any failing driver call, Copy returns an error or has copied correctly. No resource is left open.
func TestFailures(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	const size = 1 << 20
	at := app.Alloc(0, cuda.Device, size)
	in := noise(7, size)
	app.Write(0, at, in)
	once := func(pieces ...Piece) error { // by kernel and by copy engine
		c := New(lib.Path, gpu.Auto)
		ring, err := c.Ring(Host, 0, size)
		if err == nil {
			if err = c.Copy(ring, ring.Addr(), 0, pieces, true, Ends{}); err == nil {
				got := ring.bytes(app)
				for _, p := range pieces {
					require.Equal(t, in[p.Addr-at:][:p.Len], got[:p.Len])
					got = got[p.Len:]
				}
			}
			require.NoError(t, ring.Free())
		}
		require.NoError(t, c.Close())
		return err
	}
	for _, call := range []string{"DevicePrimaryCtxRetain", "CtxPushCurrent", "MemHostRegister", "StreamCreateWithPriority", "EventCreate", "MemHostAlloc",
		"LaunchKernel", "MemcpyAsync", "EventRecord", "EventQuery", "StreamQuery", "ModuleLoadDataEx"} {
		failed := false
		for n := 1; n <= 4; n++ {
			lib.Fail(call, n, cuda.OutOfMemory)
			failed = once(Piece{at, 1000}, Piece{at + 2000, 3000}) != nil || failed
			lib.Fail(call, n, cuda.OutOfMemory)
			failed = once(Piece{at, size}) != nil || failed
			lib.Fail(call, 0, 0)
			require.NoError(t, once(Piece{at, size}), "%s, call %d: afterwards", call, n)
		}
		question := call == "EventQuery" || call == "StreamQuery" // the driver is asked again: the copy goes on
		require.Equal(t, !question, failed, "%s", call)
	}
	app.Free(0, cuda.Device, at)
}

// BenchmarkCopy measures a GPU's copy engine between pinned host memory and GPU memory:
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./backend/staging -run NONE -bench . -benchtime 20x
func BenchmarkCopy(b *testing.B) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		b.Skip("wants a GPU: GORAIL_TEST_CUDA=libcuda.so.1")
	}
	app := cuda.NewApp(b, path)
	c := New(path, gpu.Auto)
	defer c.Close()
	for _, size := range []uint64{1 << 20, 4 << 20, 256 << 20, 1 << 30} {
		at := app.Alloc(0, cuda.Device, size)
		ring, err := c.Ring(Host, 0, size)
		require.NoError(b, err)
		for name, out := range map[string]bool{"GPU to host": true, "host to GPU": false} {
			b.Run(fmt.Sprintf("%d MiB %s", size>>20, name), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					if err := c.Copy(ring, ring.Addr(), 0, []Piece{{at, size}}, out, Ends{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		require.NoError(b, ring.Free())
		app.Free(0, cuda.Device, at)
	}
}

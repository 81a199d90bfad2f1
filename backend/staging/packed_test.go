package staging

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// numbers are bfloat16.
func numbers(n int) []byte {
	b := make([]byte, n)
	pattern.Fill(b, 1|pattern.Floats, 0)
	return b
}

// TestPack packs and unpacks pieces, also after copies and beside them, on a GPU that is not the first. What gains nothing comes in clear.
func TestPack(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Auto)
	const size = 1 << 20
	from, to := app.Alloc(1, cuda.Device, size), app.Alloc(1, cuda.Device, size)
	ring, err := c.Ring(Host, 1, 2*size)
	require.NoError(t, err)
	_, err = c.Pack(ring, ring.Addr(), 1, []Piece{{from, size}}, Ends{})
	require.ErrorIs(t, err, gpu.NoPack)
	require.NoError(t, c.PackRoom(1, size, nil))
	for name, in := range map[string][]byte{"numbers": numbers(size), "noise": noise(3, size)} {
		app.Write(1, from, in)
		app.Write(1, to, make([]byte, size))
		pieces, back := []Piece{{from, 700_001}, {from + 800_000, 123_000}}, []Piece{{to, 700_001}, {to + 800_000, 123_000}}
		packed, err := c.Pack(ring, ring.Addr(), 1, pieces, Ends{})
		require.NoError(t, err)
		require.Equal(t, name == "numbers", packed > 0)
		require.NoError(t, c.Copy(ring, ring.Addr()+size, 1, pieces, true, Ends{}))
		if packed > 0 {
			require.Less(t, packed, uint64(823_001*3/4))
			require.NoError(t, c.Unpack(ring, ring.Addr(), packed, 1, back, Ends{}))
			require.ErrorIs(t, c.Unpack(ring, ring.Addr(), packed-16, 1, back, Ends{}), gpu.BadPack)
			require.NoError(t, c.Unpack(ring, ring.Addr(), packed, 1, back, Ends{}))
		} else {
			require.NoError(t, c.Copy(ring, ring.Addr(), 1, back, false, Ends{}))
		}
		want := make([]byte, size)
		copy(want[:700_001], in)
		copy(want[800_000:923_000], in[800_000:])
		pattern.Same(t, want, app.Read(1, to, size), name)
		pattern.Same(t, append(in[:700_001:700_001], in[800_000:923_000]...), ring.bytes(app)[size:][:823_001], name)
	}
	require.NoError(t, ring.Free())
	app.Free(1, cuda.Device, from)
	app.Free(1, cuda.Device, to)
	require.NoError(t, c.Close())
}

// TestPackEngine: with gpu_copy=engine no kernel is launched.
func TestPackEngine(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Engine)
	at := app.Alloc(0, cuda.Device, 1<<20)
	require.ErrorIs(t, c.PackRoom(0, 1<<20, nil), errEngines)
	require.Zero(t, lib.Count("launches"))
	app.Free(0, cuda.Device, at)
	require.NoError(t, c.Close())
}

// TestPackRoom: a GPU without memory is asked again later, one without the kernels never.
func TestPackRoom(t *testing.T) {
	lib := cuda.Build(t)
	c := New(lib.Path, gpu.Auto)
	defer func() { require.NoError(t, c.Close()) }()
	_, err := c.stream(streamKey{0, gpu.ToHost}, nil)
	require.NoError(t, err)
	lib.Fail("MemAlloc", 1, cuda.OutOfMemory)
	require.ErrorIs(t, c.PackRoom(0, 1<<20, nil), gpu.NoMemory)
	require.ErrorIs(t, c.PackRoom(0, 1<<20, nil), gpu.NoMemory, "not asked again at once")
	s, _ := c.stream(streamKey{0, gpu.ToHost}, nil)
	s.packs.again = s.packs.again.Add(-noRoomFor)
	require.NoError(t, c.PackRoom(0, 1<<20, nil))
	require.NoError(t, c.PackRoom(0, 1<<19, nil))
	_, err = c.stream(streamKey{1, gpu.ToHost}, nil)
	require.NoError(t, err)
	lib.Fail("ModuleLoadDataEx", 1, cuda.NoJIT)
	require.ErrorIs(t, c.PackRoom(1, 1<<20, nil), gpu.NoPack)
	require.ErrorIs(t, c.PackRoom(1, 1<<20, nil), gpu.NoPack)
	s, _ = c.stream(streamKey{1, gpu.ToHost}, nil)
	require.True(t, s.packs.again.IsZero())
}

// TestPackStuck: the GPU does not end a packed copy. It is abandoned, and the ring stays until it ends.
func TestPackStuck(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	c := New(lib.Path, gpu.Auto)
	const size = 1 << 20
	at := app.Alloc(0, cuda.Device, size)
	app.Write(0, at, numbers(size))
	ring, err := c.Ring(Host, 0, size)
	require.NoError(t, err)
	require.NoError(t, c.PackRoom(0, size, nil))
	packed, err := c.Pack(ring, ring.Addr(), 0, []Piece{{at, size}}, Ends{})
	require.NoError(t, err)
	lib.Set("hold", 1)
	over := make(chan struct{})
	close(over)
	for _, unpack := range []bool{false, true} {
		stop := make(chan struct{})
		ends := Ends{Stop: stop, Abandon: over}
		go func() {
			for ring.copies.Load() == 0 || unpack && ring.copies.Load() == 1 {
				runtime.Gosched()
			}
			close(stop)
		}()
		if unpack {
			err = c.Unpack(ring, ring.Addr(), packed, 0, []Piece{{at, size}}, ends)
		} else {
			_, err = c.Pack(ring, ring.Addr(), 0, []Piece{{at, size}}, ends)
		}
		require.ErrorIs(t, err, ErrUnfinished)
		require.ErrorIs(t, ring.Free(), ErrUnfinished)
	}
	lib.Set("hold", 0)
	require.Eventually(t, func() bool { return ring.copies.Load() == 0 }, time.Minute, time.Millisecond)
	require.NoError(t, ring.Free())
	app.Free(0, cuda.Device, at)
	require.NoError(t, c.Close())
}

// TestPackRoomClose: the driver does not end the translation of the kernels. Callers wait no longer than they want, and Close waits for the driver:
// before that, its call uses what Close frees.
func TestPackRoomClose(t *testing.T) {
	lib := cuda.Build(t)
	c := New(lib.Path, gpu.Auto)
	stop := make(chan struct{})
	close(stop)
	lib.Set("compiling", 1)
	_, err := c.stream(streamKey{0, gpu.ToHost}, stop)
	require.ErrorIs(t, err, gpu.Cancelled)
	lib.Set("compiling", 0)
	_, err = c.stream(streamKey{0, gpu.ToHost}, nil)
	require.NoError(t, err)
	lib.Set("compiling", 1)
	c.SetPatience(time.Millisecond)
	require.ErrorIs(t, c.PackRoom(0, 1<<20, nil), errTranslating)
	c.SetPatience(time.Minute)
	require.ErrorIs(t, c.PackRoom(0, 1<<20, stop), gpu.Cancelled)
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed beside the driver's call: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.ErrorIs(t, c.PackRoom(0, 2<<20, nil), gpu.Cancelled, "closed")
	lib.Set("compiling", 0)
	require.NoError(t, <-closed)
	for _, of := range []string{"mems", "modules", "streams", "contexts"} {
		require.Zero(t, lib.Count(of), of)
	}
}

package cuda

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	imitation "gorail/test/cuda"
)

// real is this machine's driver; "": the imitation.
var real = os.Getenv("GORAIL_TEST_CUDA")

// driver loads the imitation, which makes memory with fabric handles, or this machine's driver.
func driver(t *testing.T) *Driver {
	path := real
	if path == "" {
		lib := imitation.Build(t)
		lib.Set("fabric", 1)
		path = lib.Path
	}
	t.Setenv(EnvPath, path)
	d, err := load()
	require.NoError(t, err)
	return d
}

// alloc allocates VMM memory with such a handle; 0: memory of cuMemAlloc.
func alloc(g *GPU, size uint64, handle Handle) (*Memory, error) {
	if handle == 0 {
		return g.Alloc(size)
	}
	return g.AllocPieces(size, size, handle)
}

// TestMemory: bytes come back from each kind of memory of each GPU.
func TestMemory(t *testing.T) {
	d := driver(t)
	for id := range d.gpus {
		g, err := d.GPU(id)
		require.NoError(t, err)
		require.NotEmpty(t, g.Name)
		for _, handle := range []Handle{0, Descriptor, Fabric} {
			m, err := alloc(g, 1<<20, handle)
			if handle == Fabric && real != "" && err != nil {
				require.ErrorContains(t, err, "CUDA_ERROR_NOT_", "a machine without an IMEX channel")
				continue
			}
			require.NoError(t, err)
			require.NotZero(t, m.Addr())
			require.Equal(t, handle != 0, m.Handles() == 1)
			require.Equal(t, handle == 0, m.Handles() == 0)
			out, in := make([]byte, 5000), make([]byte, 5000)
			for i := range out {
				out[i] = byte(i * 7)
			}
			require.NoError(t, m.Write(out))
			require.NoError(t, m.Read(in))
			require.Equal(t, out, in)
			require.NoError(t, m.Free())
			require.NoError(t, m.Free())
		}
	}
	d.release()
}

// TestCopy: bytes of another GPU and of this one arrive, as often as asked, also by a second call: access was given before.
func TestCopy(t *testing.T) {
	d := driver(t)
	here, err := d.GPU(0)
	require.NoError(t, err)
	const half = 1 << 20
	out, in := make([]byte, 2*half), make([]byte, 2*half)
	for i := range out {
		out[i] = byte(i / 4093)
	}
	for other := range d.gpus {
		g, err := d.GPU(other)
		require.NoError(t, err)
		from, err := g.Alloc(2 * half)
		require.NoError(t, err)
		require.NoError(t, from.Write(out))
		for _, handle := range []Handle{0, Descriptor} {
			to, err := alloc(here, 2*half, handle)
			require.NoError(t, err)
			asked := 0
			n, err := here.Copy(other, []Range{{to.Addr(), from.Addr() + half, half}, {to.Addr() + half, from.Addr(), half}}, func() bool { asked++; return asked == 2 })
			require.NoError(t, err)
			require.EqualValues(t, 2, n)
			require.NoError(t, to.Read(in))
			require.Equal(t, out[half:], in[:half])
			require.Equal(t, out[:half], in[half:])
			require.NoError(t, to.Free())
		}
		require.NoError(t, from.Free())
	}
	_, err = here.Copy(99, nil, func() bool { return true })
	require.ErrorContains(t, err, "no GPU 99")
	d.release()
}

// TestPieces: memory of several handles is one range of addresses, and all of them are given back, also after a handle that there is no memory for.
func TestPieces(t *testing.T) {
	d := driver(t)
	g, err := d.GPU(0)
	require.NoError(t, err)
	m, err := g.AllocPieces(9<<20, 3<<20, Descriptor) // handles are multiples of 2 MiB
	require.NoError(t, err)
	require.Equal(t, 3, m.Handles())
	out, in := make([]byte, 9<<20), make([]byte, 9<<20)
	for i := range out {
		out[i] = byte(i / 4097)
	}
	release := m.Hold()
	require.NoError(t, m.Write(out))
	require.NoError(t, m.Read(in))
	release()
	require.Equal(t, out, in)
	require.NoError(t, m.Free())
	_, err = g.AllocPieces(1<<50, 1<<48, Descriptor)
	require.ErrorContains(t, err, "bytes of GPU 0: allocation: ")
	d.release()
}

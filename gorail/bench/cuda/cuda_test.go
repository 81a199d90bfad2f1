package cuda

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	imitation "gorail/test/cuda"
)

// driver loads the imitation, or with GORAIL_TEST_CUDA this machine's driver.
func driver(t *testing.T) (d *Driver, real bool) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	real = path != ""
	if !real {
		path = imitation.Build(t).Path
	}
	t.Setenv(EnvPath, path)
	d, err := load()
	require.NoError(t, err)
	return d, real
}

// TestMemory: bytes come back from both kinds of memory of each GPU.
func TestMemory(t *testing.T) {
	d, _ := driver(t)
	for id := range d.gpus {
		g, err := d.GPU(id)
		require.NoError(t, err)
		require.NotEmpty(t, g.Name)
		for _, vmm := range []bool{false, true} {
			m, err := g.Alloc(1<<20, vmm)
			require.NoError(t, err)
			require.NotZero(t, m.Addr())
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

// TestBusy: the load counts launches on a real GPU. The imitation runs no kernel but the plugin's, and says so.
func TestBusy(t *testing.T) {
	d, real := driver(t)
	g, err := d.GPU(0)
	require.NoError(t, err)
	l, err := g.Busy()
	if !real {
		require.ErrorContains(t, err, "GPU 0 cannot be kept busy: the kernel of the load: unknown error (218)")
		d.release()
		return
	}
	require.NoError(t, err)
	for l.count < 3 {
		_, err := l.Rate()
		require.NoError(t, err)
	}
	require.NoError(t, l.Stop())
	d.release()
}

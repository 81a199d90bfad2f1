package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// While the application captures a graph in mode global, torch's default, no call of ours breaks the capture: not from the first use of a GPU to
// the last copy. Build checks that no thread stays relaxed.
func TestGraphCapture(t *testing.T) {
	r := open(t)
	const room = 4 * mib
	for _, is := range []struct{ local, far uint64 }{
		{r.alloc(0, cuda.Device, room), r.alloc(1, cuda.Device, room)},
		{r.vmm(0, 2, cuda.Granule, true), r.vmm(1, 2, cuda.Granule, true)},
	} {
		from := noise(int64(is.far), room)
		r.app.Write(1, is.far, from)
		for _, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
			r.app.Write(0, is.local, noise(9, room))
			r.lib.Set("capturing", 1)
			r.copyAll(is.local, is.far, room, how)
			r.lib.Set("capturing", 0)
			pattern.Same(t, from, r.app.Read(0, is.local, room), "unexpected bytes")
		}
	}
}

// copyAll maps memory of GPU 1 and copies it to memory of GPU 0 in pieces, and undoes all.
func (r *rig) copyAll(local, far uint64, room int, how gpu.How) {
	_, err := r.drv.Device(0)
	require.NoError(r, err)
	s, err := r.drv.Share(r.what(far, uint64(room)))
	require.NoError(r, err)
	m, _, err := r.drv.Map(s, 0)
	require.NoError(r, err)
	const n = 64
	ops := r.drv.Ops(n)
	require.NotNil(r, ops)
	for i := range ops {
		size := uint64(room / n)
		ops[i] = gpu.Op{Local: local + uint64(i)*size, Remote: m.At(far) + uint64(i)*size, Len: size}
	}
	l, err := r.drv.Stream(0, 1)
	require.NoError(r, err)
	j, err := l.Job()
	require.NoError(r, err)
	r.run(j, gpu.Work{Ops: ops, How: how})
	require.NoError(r, j.Free())
	l.Close()
	r.drv.FreeOps(ops)
	require.NoError(r, m.Close())
	ring, err := r.drv.SharedVRAM(0, mib)
	require.NoError(r, err)
	require.NoError(r, r.drv.FreeVRAM(0, ring))
}

package e2e

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// TestVRAMCopyMethod: option gpu_copy. A copy engine or the kernel makes all copies, of one block and of scattered blocks.
func TestVRAMCopyMethod(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the real driver does not count")
	}
	for _, c := range []struct {
		method             string
		launches1, launchN bool // a kernel copies one block, and many
	}{{"auto", false, true}, {"kernel", true, true}, {"engine", false, false}} {
		const size = 2 * cuda.Granule
		p := gpuPair(t, params("gpu_copy", c.method))
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
		p.ini.Learn(p.tgt)
		l := worker.Layout{Len: 512, Stride: 4096, Count: size / 4096, Shuffle: 1}
		for list, launches := range map[*worker.Layout]bool{nil: c.launches1, &l: c.launchN} {
			from, to := a.All(), b.All()
			if list != nil {
				from, to = a.At(l), b.At(l)
			}
			before := p.ini.GPUCount("launches")
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from, Remote: to, Peer: "bob"}).Do(limit)
			require.Equal(t, launches, p.ini.GPUCount("launches") > before, "%s, list %v", c.method, list)
		}
		b.Want(seedA)
		require.NoError(t, p.ini.Close())
		require.NoError(t, p.tgt.Close())
	}
}

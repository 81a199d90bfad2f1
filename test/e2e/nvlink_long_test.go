package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// mapped is a transfer of 100 blocks to memory that is mapped already: bytes do not go over the wire.
func mapped(t *testing.T, r *rack, ini *worker.Agent, spec worker.XferSpec) *worker.Xfer {
	t.Helper()
	x := ini.Xfer(spec)
	require.True(t, worker.Eventually(limit, func() bool {
		before := r.wire()
		x.Do(limit)
		return r.wire()-before < 100*4096
	}), "bytes go over the wire")
	return x
}

// TestNVLinkLong: a copy that takes GPUs six times rail_timeout is no silent rail. It ends over NVLink, beside an idle rail of tcp.
func TestNVLinkLong(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		r := newRack(t)
		ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
		a, b := ini.GPUBuffer(2*cuda.Granule, seedA, device(0)), tgt.GPUBuffer(2*cuda.Granule, seedB, fabricMem(1, 2))
		ini.Learn(tgt)
		la, lb := scattered(0, 4096, 0, 100, 1), scattered(0, 4096, 4096, 100, 1)
		x := mapped(t, r, ini, worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob"})
		a.Fill(seedA)
		b.Fill(seedB)
		before := r.wire()
		ini.GPUSwitch("op", 30_000)
		x.Do(limit)
		require.Less(t, r.wire()-before, uint64(100*4096), "bytes went over the wire")
		want(op, a, b, la, lb)
		require.NotContains(t, ini.Output(), "fencing a link")
	})
}

// TestNVLinkStuck: a GPU that never ends a copy. The transfer is aborted after xfer_timeout, and its link is fenced. Host memory moves meanwhile. The
// status waits for the GPU, which may still access the memory.
func TestNVLinkStuck(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	ini, tgt := r.start("alice", tray{opts: []option{params("xfer_timeout", "3s", "cancel_timeout", "500ms")}}), r.start("bob", tray{})
	a, b := ini.GPUBuffer(2*cuda.Granule, seedA, device(0)), tgt.GPUBuffer(2*cuda.Granule, seedB, fabricMem(1, 2))
	c, d := ini.Buffer(4096, seedA), tgt.Buffer(4096, seedB)
	ini.Learn(tgt)
	spec := worker.XferSpec{Op: nixlapi.Write, Local: a.At(scattered(0, 4096, 0, 100, 1)), Remote: b.At(scattered(0, 4096, 4096, 100, 1)), Peer: "bob"}
	x := mapped(t, r, ini, spec)
	ini.GPUSwitch("hold", 1)
	require.Equal(t, nixlapi.InProgress, x.Post())
	says(t, ini.Worker, "transfer timed out", "xfer_timeout")
	says(t, ini.Worker, "closing an endpoint failed", "GPU 0 has not ended a copy")
	host := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: c.All(), Remote: d.All(), Peer: "bob"})
	host.Do(limit)
	d.Want(seedA)
	require.Equal(t, nixlapi.InProgress, x.Status())
	waiting := x.WaitAsync(limit)
	ini.GPUSwitch("hold", 0)
	require.True(t, waiting.Wait().Status.Failed())
	require.NotContains(t, ini.Output(), "rail_timeout")
}

package e2e

import (
	"fmt"
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
		on := tray{opts: []option{params("gpu_copy", "kernel")}} // the switch slows kernels
		ini, tgt := r.start("alice", on), r.start("bob", on)
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

// TestNVLinkReboots: a peer's machine boots again and again, and its GPUs are in another clique then, or its daemon in another IMEX domain, and in the old
// ones again. Transfers take the next best way, with one WARN that names what differs, and NVLink again.
func TestNVLinkReboots(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	ini := r.start("alice", tray{})
	a, other := ini.GPUBuffer(trapSize, seedA, device(0)), t.TempDir()
	said := map[string]int{}
	for i, boot := range []struct {
		is   tray
		warn string
	}{
		{},
		{tray{gpus: "3,0,ab,8;3,0,ab,8"}, "its GPUs have another clique in the same cluster"},
		{},
		{tray{gpus: "3,0,cd,7;3,0,cd,7"}, "its GPUs have another cluster UUID"},
		{tray{domain: other}, "cuMemImportFromShareableHandle"},
		{},
	} {
		r.hosts["bob"].Reboot(fmt.Sprintf("00000000-1111-2222-3333-%012d", i))
		tgt := r.start("bob", boot.is)
		b := tgt.GPUBuffer(trapSize, seedB, fabricMem(1, 2))
		before := r.wire()
		moves(t, ini, tgt, a, b)
		if over := r.wire() - before; boot.warn == "" {
			require.Less(t, over, uint64(2*trapSize), "boot %d: bytes went over the wire", i) // of ten; a host that starves maps too late for the first
		} else {
			require.Greater(t, over, uint64(8*trapSize), "boot %d", i)
			said[boot.warn]++
		}
		for text, n := range said {
			require.Len(t, warned(ini, tgt, text), n, "boot %d", i)
		}
		tgt.Kill()
		_ = ini.Invalidate("bob")
	}
}

// TestNVLinkRights: memory that peers may only read has no handle, since the importer of one chooses whether to write. Its bytes go another way.
func TestNVLinkRights(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	r := newRack(t)
	ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
	a, b := ini.GPUBuffer(size, seedA, device(0)), tgt.AllocGPU(2*cuda.Granule, fabricMem(1, 1))
	b.Fill(seedB)
	require.NoError(t, tgt.RegisterMeta("remote_access=read", b.All()))
	ini.Learn(tgt)
	x, before := ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.Span(0, size), Peer: "bob"}), r.wire()
	for range 5 {
		x.Do(limit)
	}
	a.Want(seedB)
	require.Greater(t, r.wire()-before, uint64(5*size))
	require.Zero(t, tgt.GPUCount("exports"), "handles were made")
	y := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.Span(0, size), Peer: "bob"})
	require.True(t, y.Try(limit).Failed())
	require.Zero(t, tgt.GPUCount("exports"), "handles were made")
}

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// TestNVLinkRegions: a transfer over more regions than the owner exports handles for at a time. The session stays, and the regions are mapped.
func TestNVLinkRegions(t *testing.T) {
	t.Parallel()
	const n, part = 192, 64 << 10
	r := newRack(t)
	ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
	a, b := ini.GPUBuffer(n*part, seedA, device(0)), tgt.AllocGPU(n*part, fabricMem(1, n*part/cuda.Granule))
	for i := range uint64(n) {
		require.NoError(t, tgt.Register(b.Span(i*part, part)))
	}
	ini.Learn(tgt)
	parts := worker.Layout{Len: part, Stride: part, Count: n}
	x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(parts), Remote: b.At(parts), Peer: "bob"})
	require.True(t, worker.Eventually(limit, func() bool {
		before := r.wire()
		x.Do(limit)
		return r.wire()-before < part
	}), "bytes go over the wire")
	b.Want(seedA)
	require.NotContains(t, ini.Output()+tgt.Output(), "level=WARN")
	require.NotContains(t, tgt.Output(), "fabric handles at once")
}

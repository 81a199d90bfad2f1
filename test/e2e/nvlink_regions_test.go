package e2e

import (
	"testing"
	"time"

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

// TestNVLinkFar: on a slow network the owner's answers about all regions of a WRITE together take longer than an answer is good. The WRITE moves over
// NVLink all the same.
func TestNVLinkFar(t *testing.T) {
	t.Parallel()
	const n, part = 192, 64 << 10
	a, b := wan{rtt: 40 * time.Millisecond, mbit: 1000, mtu: 9000, queue: 20 * time.Millisecond, control: "reno"}.hosts(t)
	r := newRackOf(t, a, b)
	on := tray{opts: []option{params("devices", wanName+",gpus")}}
	ini, tgt := r.start("alice", on), r.start("bob", on)
	from, to := ini.GPUBuffer(n*part, seedA, device(0)), tgt.AllocGPU(n*part, fabricMem(1, 1))
	for i := range uint64(n) {
		require.NoError(t, tgt.Register(to.Span(i*part, part)))
	}
	ini.Learn(tgt)
	parts := worker.Layout{Len: part, Stride: part, Count: n}
	x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.At(parts), Remote: to.At(parts), Peer: "bob"})
	require.True(t, worker.Eventually(limit, func() bool { x.Do(limit); return ini.GPUCount("imports") >= n }), "%d regions mapped", ini.GPUCount("imports"))
	from.Fill(seedC)
	before := a.Sent(wanName)
	x.Do(limit)
	require.Less(t, a.Sent(wanName)-before, uint64(n*part/2), "bytes go over the wire")
	to.Want(seedC)
	require.NotContains(t, ini.Output(), "fencing a link")
}

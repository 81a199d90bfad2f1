package verbs

import (
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake/drive"
	imitation "gorail/test/verbs"
)

// mixed returns ten operations with 27 requests in total, two of them messages.
func (s *side) mixed(peer *side, ep unsafe.Pointer) []drive.Op {
	msg := drive.Msg(s.mem[:40], s.mr.Desc())
	return []drive.Op{
		{Ep: ep, Kind: drive.Write, ID: 1, Segs: s.segs(peer, 8, 512)},
		{Ep: ep, Kind: drive.WriteUnsignaled, ID: 2, Segs: s.segs(peer, 3, 512)},
		{Ep: ep, Kind: drive.Write, ID: 3, Segs: s.segs(peer, 1, 512)},
		{Ep: ep, Kind: drive.Send, ID: 4, Segs: msg},
		{Ep: ep, Kind: drive.Read, ID: 5, Segs: s.segs(peer, 2, 512)},
		{Ep: ep, Kind: drive.WriteUnsignaled, ID: 6, Segs: s.segs(peer, 4, 512)},
		{Ep: ep, Kind: drive.WriteUnsignaled, ID: 7, Segs: s.segs(peer, 1, 512)},
		{Ep: ep, Kind: drive.Write, ID: 8, Segs: s.segs(peer, 4, 512)},
		{Ep: ep, Kind: drive.Send, ID: 9, Segs: msg},
		{Ep: ep, Kind: drive.WriteUnsignaled, ID: 10, Segs: s.segs(peer, 2, 512)},
	}
}

// Requests posted under one lock reach the device in one call, up to 32 requests. A WRITE and the message behind it
// share one completion.
func TestGather(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, y := link(a, b)
	for id := range uint64(4) {
		require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc()))
	}
	lib.Zero()
	require.NoError(t, a.d.Together(a.mixed(b, x.Core())...))
	require.Equal(t, []int{1, 27}, counts(lib, "chains", "longest"))
	require.Equal(t, 4, lib.Count("signaled"), "the first WRITE, the READ and the messages")
	a.until(10)
	b.until(2)

	lib.Zero() // too many for one chain; operations are not split
	var ops []drive.Op
	for id := range uint64(9) {
		ops = append(ops, drive.Op{Ep: x.Core(), Kind: drive.Write, ID: 100 + id, Segs: a.segs(b, 7, 512)})
	}
	require.NoError(t, a.d.Together(ops...))
	require.Equal(t, []int{63, 3, 28}, counts(lib, "writes", "chains", "longest"))
	a.until(19)

	lib.Zero() // each endpoint has its own chain
	z, _ := link(a, b)
	ops = ops[:0]
	for id := range uint64(6) {
		ep := x.Core()
		if id >= 3 {
			ep = z.Core()
		}
		ops = append(ops, drive.Op{Ep: ep, Kind: drive.WriteUnsignaled, ID: 200 + id, Segs: a.segs(b, 1, 512)})
	}
	require.NoError(t, a.d.Together(ops...))
	require.Equal(t, []int{2, 3}, counts(lib, "chains", "longest"))
	a.until(25)
	for id, c := range a.done {
		require.Zero(t, c.Err, "operation %d", id)
	}
}

// The device stops in the middle of the gathered requests, at each request in turn. ENOMEM: the rest is posted later,
// and all succeed. EIO: operations that the device does not have, or has in part, fail with EIO. Earlier ones succeed
// or are flushed. Each ends once.
func TestGatherRefused(t *testing.T) {
	last := []int{0, 8, 11, 12, 13, 15, 19, 20, 24, 25, 27} // number of requests up to the end of each operation
	for taken := range 27 {
		for _, delay := range []int{0, 3} {
			for _, e := range []syscall.Errno{syscall.ENOMEM, syscall.EIO} {
				t.Run(fmt.Sprint(taken, delay, e), func(t *testing.T) {
					lib := imitation.Build(t)
					lib.Set("delay", delay)
					a, b := pair(t, lib)
					x, y := link(a, b)
					for id := range uint64(4) {
						require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc()))
					}
					lib.Set("partial", taken+1)
					lib.Set("partial_err", int(e))
					require.NoError(t, a.d.Together(a.mixed(b, x.Core())...))
					if e == syscall.ENOMEM {
						require.False(t, a.d.Arm(), "requests wait for the device")
					}
					a.until(10)
					for id, c := range a.done {
						switch {
						case e == syscall.ENOMEM:
							require.Zero(t, c.Err, "operation %d", id)
						case taken < last[id]:
							require.Equal(t, syscall.EIO, c.Err, "operation %d", id)
						default:
							require.Contains(t, []syscall.Errno{0, syscall.ECANCELED}, c.Err, "operation %d", id)
						}
					}
					for range 10 {
						require.Zero(t, a.poll())
					}
					require.Equal(t, 1, lib.Count("refused"))
				})
			}
		}
	}
}

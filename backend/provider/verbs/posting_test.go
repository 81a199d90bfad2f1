package verbs

import (
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// The device takes `taken` requests of a chain of eight, and refuses the rest. The operation fails once, whether the
// device has executed its requests by then or not. Earlier operations end normally, later ones fail.
func TestPartialChain(t *testing.T) {
	for taken := range 8 {
		for _, c := range []struct {
			name, set string
			to, op    int
			modify    bool // the transition to ERR fails, too
		}{
			{name: "executed", set: "delay", op: drive.Write},
			{name: "executed unsignaled", set: "delay", op: drive.WriteUnsignaled},
			{name: "executed read", set: "delay", op: drive.Read},
			{name: "flushed", set: "delay", to: 2, op: drive.Write},
			{name: "async", set: "async", to: 1, op: drive.Write},
			{name: "device is gone", set: "delay", op: drive.Write, modify: true},
		} {
			t.Run(fmt.Sprint(c.name, taken), func(t *testing.T) {
				lib := imitation.Build(t)
				lib.Set(c.set, c.to)
				a, b := pair(t, lib)
				x, _ := link(a, b)
				segs := a.segs(b, 8, 100)
				require.NoError(t, a.d.RMA(x.Core(), drive.WriteUnsignaled, 1, segs[:3]...))
				require.NoError(t, a.d.RMA(x.Core(), drive.Write, 2, segs[:2]...))
				require.NoError(t, a.d.RMA(x.Core(), drive.WriteUnsignaled, 3, segs[:1]...))
				lib.Set("partial", taken+1)
				lib.Set("partial_err", int(syscall.EIO))
				if c.modify {
					lib.FailMany("modify_err", 1, 10, syscall.EIO)
				}
				require.NoError(t, a.d.RMA(x.Core(), c.op, 4, segs...))
				a.until(4)
				require.Equal(t, syscall.EIO, a.done[4].Err)
				for range 10 {
					require.Zero(t, a.poll())
				}
				if c.to == 0 {
					require.Zero(t, a.done[1].Err)
					require.Zero(t, a.done[2].Err)
				}
				require.NoError(t, a.d.RMA(x.Core(), drive.Write, 5, segs...))
				a.until(5)
				if !c.modify {
					require.Equal(t, syscall.ECANCELED, a.done[5].Err)
				}
				if c.name == "flushed" { // all requests are flushed: no empty WRITE is needed
					require.Zero(t, lib.Count("empty_writes"))
				}
				require.LessOrEqual(t, lib.Count("empty_writes"), 1)
				require.NoError(t, x.Close())
				require.Zero(t, a.poll())
			})
		}
	}
}

// stall posts a message that waits for a receive. The device executes nothing behind the message.
func stall(t *testing.T, a *side, ep provider.Endpoint, id uint64) {
	require.NoError(t, a.d.Send(ep.Core(), id, a.mem[:64], a.mr.Desc()))
}

// fill posts until the queue is full and returns the number of operations. Their ids start with first.
func fill(t *testing.T, a, b *side, ep provider.Endpoint, first uint64) int {
	for n := 0; ; n++ {
		op := []int{drive.WriteUnsignaled, drive.WriteUnsignaled, drive.Write, drive.Read}[n%4]
		if err := a.d.RMA(ep.Core(), op, first+uint64(n), a.segs(b, 1+n%3, 64)...); err != nil {
			require.ErrorIs(t, err, syscall.EAGAIN)
			return n
		}
	}
}

// An endpoint closes with hundreds of requests in flight. Each operation is reported once.
func TestCloseFlushes(t *testing.T) {
	for _, set := range []string{"", "remove", "async"} {
		t.Run("by "+set, func(t *testing.T) {
			lib := imitation.Build(t)
			a, b := pair(t, lib)
			if set != "" {
				lib.Set(set, 1)
			}
			x, _ := link(a, b)
			stall(t, a, x, 0)
			n := 1 + fill(t, a, b, x, 1)
			require.Greater(t, n, 500)
			for i := range uint64(64) {
				require.NoError(t, a.d.Recv(x.Core(), 10_000+i, a.mem[:64], a.mr.Desc()))
			}
			require.ErrorIs(t, a.d.Recv(x.Core(), 0, a.mem[:64], a.mr.Desc()), syscall.EAGAIN)
			require.Zero(t, a.poll())
			require.NoError(t, x.Close())
			a.until(n + 64)
			for id, c := range a.done {
				require.Equal(t, syscall.ECANCELED, c.Err, "operation %d", id)
			}
		})
	}
}

// A completion is lost. Closing the endpoint still ends the posted operations.
func TestCloseLostCompletion(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, _ := link(a, b)
	stall(t, a, x, 0)
	require.NoError(t, a.d.Recv(x.Core(), 1, a.mem[:64], a.mr.Desc()))
	lib.Set("lose_cqe", 1)
	require.NoError(t, x.Close())
	a.until(2)
	require.Equal(t, 1, lib.Count("lost"))
}

// A closed endpoint leaves seven flushed requests in the completion queue. The next endpoint in the same slot has
// operations with the same sequence numbers. The stale completions do not complete them.
func TestStaleCompletions(t *testing.T) {
	for remove := range 2 {
		lib := imitation.Build(t)
		lib.Set("remove", remove)
		a, b := pair(t, lib)
		x, _ := link(a, b)
		post := func(ep provider.Endpoint, first uint64) {
			stall(t, a, ep, first)
			for i := range uint64(30) {
				require.NoError(t, a.d.RMA(ep.Core(), drive.Write, first+1+i, a.segs(b, 1, 64)...))
			}
			require.NoError(t, a.d.RMA(ep.Core(), drive.Write, first+31, a.segs(b, 8, 64)...))
		}
		post(x, 0)
		require.NoError(t, x.Close())
		require.Equal(t, 39, lib.Count("flushed"))
		require.Equal(t, 7*remove, lib.Count("removed"))
		x, y := link(a, b)
		post(x, 100)
		a.until(32)
		for range 100 {
			require.Zero(t, a.poll())
		}
		require.NoError(t, b.d.Recv(y.Core(), 0, b.mem[:64], b.mr.Desc()))
		a.until(64)
		for id := uint64(100); id < 132; id++ {
			require.Zero(t, a.done[id].Err)
		}
	}
}

// No poll takes the completions, and closing endpoints adds more. Posting is refused at some point, and nothing is
// overwritten.
func TestUnfetched(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, _ := link(a, b)
	n := 0
	for range 100 {
		more := 0
		for ; a.d.RMA(x.Core(), drive.Write, uint64(n+more), a.segs(b, 1, 64)...) == nil; more++ {
		}
		if n += more; more == 0 {
			break
		}
		z, _ := link(a, b)
		if a.d.Recv(z.Core(), uint64(n), a.mem[:64], a.mr.Desc()) == nil {
			n++ // flushed by Close
		}
		require.NoError(t, z.Close())
	}
	require.Greater(t, n, 2000)
	require.Less(t, n, 10_000, "no post was refused")
	a.until(n)
	require.NoError(t, a.d.RMA(x.Core(), drive.Write, uint64(n), a.segs(b, 1, 64)...))
	a.until(n + 1)
}

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

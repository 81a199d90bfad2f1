package verbs

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// short returns a library whose completion queues have room for two endpoints of 1,088 completions each.
func short(t *testing.T) *imitation.Lib {
	lib := imitation.Build(t)
	lib.Set("max_cqe", 2200)
	return lib
}

// links connects n pairs of endpoints.
func links(a, b *side, n int) (xs, ys []provider.Endpoint) {
	for range n {
		x, y := link(a, b)
		xs, ys = append(xs, x), append(ys, y)
	}
	return xs, ys
}

// Completions of all queues arrive, each once, and messages between them.
func TestManyQueues(t *testing.T) {
	for _, set := range []string{"", "async", "remove", "delay"} {
		t.Run("by "+set, func(t *testing.T) {
			lib := short(t)
			if set != "" {
				lib.Set(set, 1)
			}
			a, b := pair(t, lib)
			xs, ys := links(a, b, 7)
			require.Equal(t, 8, lib.Count("cqs"))
			for i := range xs {
				require.NoError(t, b.d.Recv(ys[i].Core(), uint64(i), b.mem[:64], b.mr.Desc()))
			}
			n := 0
			for range 300 {
				for _, x := range xs {
					op := []int{drive.WriteUnsignaled, drive.Write, drive.Read}[n%3]
					id := uint64(n)
					a.post(func() error { return a.d.RMA(x.Core(), op, id, a.segs(b, 1, 64)...) })
					n++
				}
			}
			for _, x := range xs {
				id := uint64(n)
				a.post(func() error { return a.d.Send(x.Core(), id, a.mem[:64], a.mr.Desc()) })
				n++
			}
			a.until(n)
			b.until(len(ys))
			for id, c := range a.done {
				require.Zero(t, c.Err, "operation %d", id)
			}
			require.NoError(t, b.d.Recv(ys[6].Core(), 7, b.mem[:64], b.mr.Desc()))
			require.NoError(t, ys[6].Close()) // flushed by its own queue
			b.until(8)
			require.Equal(t, syscall.ECANCELED, b.done[7].Err)
		})
	}
}

// A queue that is never empty keeps no other one waiting.
func TestQueuesInTurn(t *testing.T) {
	lib := short(t)
	a, b := pair(t, lib)
	xs, _ := links(a, b, 5)
	n := uint64(0)
	for ; n < 600; n++ {
		require.NoError(t, a.d.RMA(xs[0].Core(), drive.Write, n, a.segs(b, 1, 64)...))
	}
	for i, x := range xs[2:] {
		require.NoError(t, a.d.RMA(x.Core(), drive.Write, n+uint64(i), a.segs(b, 1, 64)...))
	}
	for range 4 {
		comps, err := a.d.Poll(32)
		require.NoError(t, err)
		require.LessOrEqual(t, len(comps), 32)
		for _, c := range comps {
			a.done[c.ID] = c
		}
	}
	for i := range xs[2:] {
		require.Contains(t, a.done, n+uint64(i), "endpoint %d", 2+i)
	}
	a.until(603)
}

// Whichever queue a completion comes to, and whether the queue was there when the sleeper went to sleep: it wakes.
func TestQueuesWake(t *testing.T) {
	lib := short(t)
	a, b := pair(t, lib)
	xs, ys := links(a, b, 2)
	id := 0
	message := func(i int, waits bool) {
		t.Helper()
		require.NoError(t, b.d.Recv(ys[i].Core(), uint64(id), b.mem[:64], b.mr.Desc()))
		stall(t, a, xs[i], uint64(id))
		id++
		require.True(t, b.d.Readable(), "endpoint %d", i)
		if !waits {
			b.until(id)
			require.True(t, b.d.Arm())
			require.False(t, b.d.Readable(), "endpoint %d", i)
		}
	}
	require.True(t, b.d.Arm())
	for i := 2; i < 7; i++ { // each second one makes a queue
		x, y := link(a, b)
		xs, ys = append(xs, x), append(ys, y)
		message(i, false)
	}
	require.Equal(t, 8, lib.Count("cqs"))
	for _, i := range []int{6, 0, 2, 4, 5, 3, 1} {
		message(i, false)
	}
	for range 3 { // events of all queues at once
		for i := range 6 {
			message(i, true)
		}
		message(6, false)
	}
	for i, y := range ys { // a sleeper that expects messages alone, then posts
		require.NoError(t, b.d.RMA(y.Core(), drive.Write, uint64(1000+i), b.segs(a, 1, 64)...))
		require.True(t, b.d.Readable(), "posted on endpoint %d", i)
		b.until(id + i + 1)
		require.True(t, b.d.Arm())
		require.False(t, b.d.Readable())
	}
	a.until(id)
}

// A queue grows while a sleeper waits for its events.
func TestResizeWakes(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("max_cqe", 32767)
	a, b := pair(t, lib)
	links(a, b, 30)
	x, y := link(a, b) // the first of another queue, with room for three
	require.Equal(t, 4, lib.Count("cqs"))
	for i := range 6 {
		require.True(t, b.d.Arm())
		links(a, b, 4)
		require.NoError(t, b.d.Recv(y.Core(), uint64(i), b.mem[:64], b.mr.Desc()))
		stall(t, a, x, uint64(i))
		require.True(t, b.d.Readable())
		b.until(i + 1)
	}
	require.Equal(t, 4, lib.Count("cqs"))
	a.until(6)
}

// Endpoints that are closed leave their room to others, and so do those that cannot be opened.
func TestQueueRoomReturns(t *testing.T) {
	for remove := range 2 {
		lib := short(t)
		lib.Set("remove", remove)
		lib.Set("max_cq", 8)
		a, b := pair(t, lib)
		for round := range 5 {
			xs, ys := links(a, b, 8)
			_, err := a.rail.OpenEndpoint()
			require.ErrorIs(t, err, syscall.ENOMEM, "round %d", round)
			for i := range xs {
				require.NoError(t, b.d.Recv(ys[i].Core(), uint64(round*8+i), b.mem[:64], b.mr.Desc()))
				stall(t, a, xs[i], uint64(round*8+i))
			}
			a.until(round*8 + 8)
			b.until(round*8 + 8)
			for _, ep := range slices.Concat(xs, ys) {
				require.NoError(t, ep.Close())
			}
			for _, call := range []string{"create_qp", "modify_init", "query_port"} {
				for range 3 {
					lib.Fail(call, 1, syscall.EPERM)
					_, err := a.rail.OpenEndpoint()
					require.ErrorIs(t, err, syscall.EPERM)
				}
			}
		}
		require.Equal(t, 8, lib.Count("cqs"))
	}
}

// The device has no more queues: the endpoint is refused, with the limits and what to do. Others go on.
func TestQueuesAtMost(t *testing.T) {
	lib := short(t)
	lib.Set("max_cq", 3)
	s := newSide(t, options(t, lib, true))
	var all []provider.Endpoint
	for range 6 {
		ep, err := s.rail.OpenEndpoint()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ep.Close()) })
		all = append(all, ep)
	}
	_, err := s.rail.OpenEndpoint()
	require.ErrorIs(t, err, provider.ErrEndpoint)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "hca0: ibv_create_cq of another completion queue (the device's max_cq is 3, its max_cqe 2200; use fewer peers, fewer qps_per_rail, or more devices)")
	require.Equal(t, []int{3, 6}, counts(lib, "cqs", "qps"))
	require.NoError(t, all[3].Close())
	ep, err := s.rail.OpenEndpoint()
	require.NoError(t, err, "one that is closed makes room")
	require.NoError(t, ep.Close())
}

// No queue can grow and no other one be made: the endpoint is refused, open ones continue, and the next one succeeds. Where only growing
// fails, another queue is made, large at once.
func TestResizeFaults(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	xs, _ := links(a, b, 30) // of 1,088 entries each: all that fit in 32,768
	id := uint64(0)
	for errno, hint := range errnos {
		lib.FailMany("resize_cq", 1, 100, errno)
		lib.FailMany("create_cq", 1, 100, errno)
		_, err := a.rail.OpenEndpoint()
		require.ErrorIs(t, err, provider.ErrEndpoint)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, "hca0: ibv_create_cq of another completion queue")
		require.ErrorContains(t, err, hint)
		require.Equal(t, []int{2, 60}, counts(lib, "cqs", "qps"))
		require.NoError(t, a.d.RMA(xs[0].Core(), drive.Write, id, a.segs(b, 1, 64)...))
		id++
		a.until(int(id))
	}
	lib.FailMany("resize_cq", 1, 1000, syscall.EOPNOTSUPP)
	lib.Fail("create_cq", 1, syscall.ENOMEM) // a shorter one is enough
	links(a, b, 15)
	require.Equal(t, 4, lib.Count("cqs"), "rail a has another queue of 16,384, rail b of 32,768")
	links(a, b, 15)
	require.Equal(t, 5, lib.Count("cqs"))
	lib.Fail("resize_cq", 0, 0)
	links(a, b, 16)
	require.Equal(t, 5, lib.Count("cqs"), "and they can grow")
}

// A driver reports success for ibv_resize_cq and leaves the queue as it is. No queue overruns.
func TestResizeIgnored(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("resize", 0)
	a, b := pair(t, lib)
	xs, _ := links(a, b, 40)
	require.Equal(t, 4, lib.Count("cqs"))
	n := 0
	for _, x := range xs {
		for a.d.RMA(x.Core(), drive.Write, uint64(n), a.segs(b, 1, 64)...) == nil {
			n++
		}
	}
	a.until(n)
	for id, c := range a.done {
		require.Zero(t, c.Err, "operation %d", id)
	}
}

// One queue fails: poll says so, and has the completions of the others all the same.
func TestOneQueueFails(t *testing.T) {
	lib := short(t)
	a, b := pair(t, lib)
	xs, _ := links(a, b, 5)
	for i, x := range xs {
		require.NoError(t, a.d.RMA(x.Core(), drive.Write, uint64(i), a.segs(b, 1, 64)...))
	}
	lib.Fail("poll_cq", 2, syscall.EIO)
	_, err := a.d.Poll(64)
	require.ErrorIs(t, err, syscall.EIO)
	polls := lib.Count("polls")
	require.Equal(t, 3, a.poll())
	require.Equal(t, polls, lib.Count("polls"), "taken before")
	a.until(5)
}

// An endpoint of the last queue is closed. The queue is flushed, which the device has reported, so the close does not wait for
// ibv_destroy_qp. That took the completion that woke a sleeper: its next sleep ends with the queue's next event.
func TestQueueFlushed(t *testing.T) {
	lib := short(t)
	a, b := pair(t, lib)
	xs, ys := links(a, b, 6)
	require.True(t, b.d.Arm())
	require.NoError(t, b.d.Recv(ys[4].Core(), 0, b.mem[:64], b.mr.Desc()))
	lib.Set("hold_destroy", 1)
	t.Cleanup(func() { lib.Set("hold_destroy", 0) })
	require.NoError(t, ys[4].Close())
	held(t, lib, 1)
	require.True(t, b.d.Readable())
	b.until(1)
	require.Equal(t, syscall.ECANCELED, b.done[0].Err)
	require.True(t, b.d.Arm())
	require.False(t, b.d.Readable())
	require.NoError(t, b.d.Recv(ys[5].Core(), 1, b.mem[:64], b.mr.Desc()))
	stall(t, a, xs[5], 0)
	require.True(t, b.d.Readable())
	b.until(2)
}

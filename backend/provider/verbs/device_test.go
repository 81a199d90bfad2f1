package verbs

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// devices returns two rails with the plugin's defaults. They use this machine's devices if GORAIL_TEST_VERBS is set,
// else imitated ones.
func devices(t *testing.T) (a, b *side) {
	if os.Getenv("GORAIL_TEST_VERBS") == "" {
		lib := imitation.Build(t)
		lib.Set("max_cqe", 32767) // as on soft RoCE
		lib.Set("async", 1)
		o := options(t, lib, true)
		return newSide(t, o), newSide(t, o)
	}
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	o := Options{IB: opts.IB}
	devs, err := New(o).Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	return sideOn(t, o, devs[0]), sideOn(t, o, devs[len(devs)-1])
}

// soon polls until n operations have completed.
func (s *side) soon(n int) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); len(s.done) < n && time.Now().Before(end); {
		if s.poll() == 0 {
			time.Sleep(100 * time.Microsecond) // yields the one CPU of a guest
		}
	}
	require.Len(s.t, s.done, n)
}

// A message to a peer without a receive fails after its retries, in bounded time, together with the operations behind
// it. Another connection of the rail continues, and a new connection to the same peer works.
func TestNotReady(t *testing.T) {
	a, b := devices(t)
	x, y := link(a, b)
	z, _ := link(a, b)
	began := time.Now()
	stall(t, a, x, 0)
	require.NoError(t, a.d.RMA(x.Core(), drive.Write, 1, a.segs(b, 1, 64)...))
	require.NoError(t, a.d.RMA(z.Core(), drive.Write, 2, a.segs(b, 1, 64)...))
	a.soon(3)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, syscall.ENOBUFS, a.done[0].Err)
	require.Equal(t, syscall.ECANCELED, a.done[1].Err)
	require.Zero(t, a.done[2].Err)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	x, y = link(a, b)
	require.NoError(t, b.d.Recv(y.Core(), 0, b.mem[:64], b.mr.Desc()))
	stall(t, a, x, 3)
	require.NoError(t, a.d.RMA(z.Core(), drive.Write, 4, a.segs(b, 1, 64)...))
	a.soon(5)
	require.Zero(t, a.done[3].Err)
	require.Zero(t, a.done[4].Err)
	b.soon(1)
	require.Zero(t, b.done[0].Err)
}

// A rail has more endpoints than one completion queue of the device has room for. All are full of requests that complete without a poll.
// The queues hold all their completions.
func TestQueueFull(t *testing.T) {
	const n = 40
	a, b := devices(t)
	ops := 0
	for range n {
		x, _ := link(a, b)
		var err error
		for err == nil {
			if err = a.d.RMA(x.Core(), drive.Write, uint64(ops), a.segs(b, 1, 64)...); err == nil {
				ops++
			}
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
	}
	require.Greater(t, ops, 300*n)
	a.soon(ops)
	for id, c := range a.done {
		require.Zero(t, c.Err, "operation %d", id)
	}
}

package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/drive"
	"gorail/gorail/measure"
)

// TestNoAllocations: a transfer that is posted again allocates nothing at its initiator: not in C in any library of the process, and
// nothing in GORAIL's Go runtime. That includes its notification. Transfers that are made anew do allocate, and are counted. The engine's
// own work, of heartbeats and timers, falls into the count, too: on a starved host so much that the least of three counts decides.
func TestNoAllocations(t *testing.T) {
	env := needs(t)
	c := config(t, env)
	c.Counts, c.Sync = true, "rw"
	c.Subjects = []measure.Subject{{Title: "shm", Backend: "GORAIL", Params: map[string]string{"provider": "sm,tcp"}}, {Title: "tcp", Backend: "GORAIL", Params: map[string]string{"provider": "tcp"}}}
	c.Points = []measure.Point{{Op: "WRITE", Block: 64, Batch: 1, Depth: 1, Threads: 1}, {Op: "READ", Block: 4096, Batch: 1, Depth: 16, Threads: 1}, {Op: "WRITE", Block: 64, Batch: 1, Depth: 1, Threads: 2}}
	c.Pace = measure.Pace{Warmup: 500, Count: 20_000, Limit: 2 * time.Minute} // Go counts some hundred objects late, and its timers need a few
	for _, subject := range c.Subjects {
		for _, point := range c.Points {
			one := *c
			one.Subjects, one.Points = []measure.Subject{subject}, []measure.Point{point}
			for try := 1; !repostsFree(t, &one, try == 3); try++ {
			}
		}
	}

	c.Subjects = c.Subjects[:1]
	c.Points = []measure.Point{{Op: "WRITE", Block: 4096, Batch: 4, Depth: 1, Threads: 1, IDs: "random", Pool: 2}}
	c.Pace.Count = 3000
	r := c.Run(context.Background())
	require.Len(t, r.Samples, 1)
	require.Empty(t, r.Samples[0].Failed)
	n := r.Samples[0].Costs[0]
	t.Logf("made anew: %+v", n)
	require.Greater(t, n.Allocs, n.N, "NIXL and the plugin make a request for each transfer")
	require.GreaterOrEqual(t, n.Callers["libplugin_GORAIL.so"], n.Traced, "and the plugin's part is told apart: %v", n.Callers)
	require.Greater(t, n.Callers["libnixl.so"], n.Traced, "%v", n.Callers)
}

// repostsFree measures one point, and reports that its reposted transfers allocate nothing. last: they must not.
func repostsFree(t *testing.T, c *drive.Config, last bool) bool {
	t.Helper()
	r := c.Run(context.Background())
	require.Len(t, r.Samples, 1)
	s := r.Samples[0]
	require.Empty(t, s.Failed)
	n := s.Costs[0]
	t.Logf("%s %s %s, %d threads: %+v", s.Subject, s.Point.Op, s.Point.Shape(), s.Point.Threads, n)
	require.EqualValues(t, 20_000, n.N)
	require.NotZero(t, n.Traced)
	require.Less(t, n.Callers["libplugin_GORAIL.so"], n.Traced/10, "allocations of the plugin's C and C++: %v", n.Callers)
	require.Equal(t, 1, n.Runtimes)
	require.NotZero(t, s.Costs[1].N, "of the target")
	inC, inGo := n.Allocs < n.N/100, n.Objects < n.GoN/2
	if last {
		require.True(t, inC, "allocations in C, of all threads")
		require.True(t, inGo, "objects in Go")
	}
	return inC && inGo
}

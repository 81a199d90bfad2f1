package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestThreads: with several threads on both sides a large transfer uses a connection of each, and a small one the first. The
// smaller number of threads counts. Bytes and the notification behind them arrive.
func TestThreads(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, c := range []struct{ here, there int }{{4, 2}, {1, 3}, {4, 4}}[:rounds(2, 3)] {
		t.Run(fmt.Sprintf("%d and %d", c.here, c.there), func(t *testing.T) {
			t.Parallel()
			const size, small = 32 << 20, 64 << 10
			file := filepath.Join(t.TempDir(), "stats.json")
			over := func(threads int, more ...string) option {
				return params(append([]string{"provider", "tcp", "devices", "lo", "tcp_threads", fmt.Sprint(threads)}, more...)...)
			}
			p := &pairOf{ini: start(t, "alice", over(c.here, "stats_file", file)), tgt: start(t, "bob", over(c.there))}
			p.tgt.Polling(true)
			a, b := p.buffers(size)
			for i := range uint64(20) {
				a.Fill(i)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, small), Remote: b.Span(0, small), Peer: "bob", Notif: []byte("n")})
				x.Do(limit)
				require.NoError(t, x.Release())
			}
			const runs = 5
			for i := range uint64(runs) {
				a.Fill(100 + i)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
				x.Do(limit)
				b.Want(100 + i)
				require.NoError(t, x.Release())
			}
			require.Len(t, p.tgt.WaitNotifs(20+runs, limit), 20+runs)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
			x.Do(limit)
			require.NoError(t, x.Release())
			require.NoError(t, p.ini.Close())

			s := snapshot(t, file)
			links := min(c.here, c.there)
			require.Len(t, s.Rails, c.here)
			require.Len(t, s.Peers, 1)
			require.Len(t, s.Peers[0].Links, links)
			var written, others uint64
			for i, l := range s.Peers[0].Links {
				require.Equal(t, l.Rail, l.PeerRail, "shard n talks to shard n")
				require.Positive(t, l.BytesWritten, i)
				if written += l.BytesWritten; i > 0 {
					others += l.BytesWritten % (512 << 10)
				}
			}
			require.LessOrEqual(t, others, uint64(small), "others than the first carried small transfers besides the first one, which takes the link that works first")
			require.EqualValues(t, 20*small+runs*size, written)
		})
	}
}

// TestThreadsShareMany: transfers that are too small to be divided use all threads if many are posted at once. The target stands
// still meanwhile, so that the first thread's connection is full.
func TestThreadsShareMany(t *testing.T) {
	t.Parallel()
	ours(t)
	const size, n = 1 << 20, 24
	file := filepath.Join(t.TempDir(), "stats.json")
	over := []string{"provider", "tcp", "devices", "lo", "tcp_threads", "3"}
	p := &pairOf{ini: start(t, "alice", params(append(over, "stats_file", file)...)), tgt: start(t, "bob", params(over...))}
	p.tgt.Polling(true)
	a, b := p.buffers(n * size)
	var all []*worker.Xfer
	for i := range uint64(n) {
		all = append(all, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(i*size, size), Remote: b.Span(i*size, size), Peer: "bob"}))
		all[i].Do(limit)
	}
	a.Fill(7)
	p.tgt.Stop()
	for _, x := range all {
		require.False(t, x.Post().Failed())
	}
	p.tgt.Cont()
	for _, x := range all {
		require.Equal(t, nixlapi.Success, x.Wait(limit))
		require.NoError(t, x.Release())
	}
	b.Want(7)
	require.NoError(t, p.ini.Close())
	for _, l := range linkStats(t, file) {
		require.GreaterOrEqual(t, l.BytesWritten, uint64(4*size), l.Rail)
	}
}

// linkStats reads the counters of the links to the only peer of a closed engine.
func linkStats(t *testing.T, file string) []stats.Link {
	s := snapshot(t, file)
	require.Len(t, s.Peers, 1)
	return s.Peers[0].Links
}

// TestThreadEnds: a thread of a Go application has called GORAIL, and ends while the application's Go runtime preempts it.
// The process lives on.
func TestThreadEnds(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	w := worker.Start(t, worker.Options{Env: env})
	var tids []int
	for range 5 {
		a := agent(w, env, "alice")
		tids = append(tids, a.Thread)
		require.NoError(t, a.Close())
	}
	for _, tid := range tids {
		require.True(t, worker.Eventually(limit, func() bool {
			w.Stats()
			_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", w.Pid(), tid))
			return os.IsNotExist(err)
		}), "thread %d does not end", tid)
	}
	w.Stats()
}

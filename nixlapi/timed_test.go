package nixlapi_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
)

// TestBench: every request of every thread is posted, as often as asked and at least once. Each timed post is counted,
// and the peer gets a notification for every post.
func TestBench(t *testing.T) {
	env := testenv.Need(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(t, err)
	a, err := lib.NewAgent("alone", nixlapi.Config{ProgThread: true, Sync: nixlapi.SyncRW})
	require.NoError(t, err)
	b, err := a.CreateBackend(env.Backend, nil)
	require.NoError(t, err)
	const n = 6 // requests, two threads of three
	m, err := nixlapi.Alloc(2 * n * 64)
	require.NoError(t, err)
	require.NoError(t, a.Register(nixlapi.DRAM, []nixlapi.Desc{m.Desc(0, 2*n*64)}, b))
	var lists [2]nixlapi.Work
	msg := []byte("n")
	for i := range uint64(n) {
		x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{m.Desc(i*64, 64)}, []nixlapi.Desc{m.Desc((n+i)*64, 64)}, "alone", nixlapi.XferOpts{Backend: b, Notif: &msg})
		require.NoError(t, err)
		lists[i%2].Xfers = append(lists[i%2].Xfers, x)
	}
	for _, tt := range []struct {
		in           nixlapi.BenchArgs
		posted, done uint64 // of each thread; 0: at least the number of requests
	}{
		{nixlapi.BenchArgs{Warmup: 5, Count: 7}, 12, 7},
		{nixlapi.BenchArgs{Warmup: 1, Count: 3}, 6, 3},
		{nixlapi.BenchArgs{Count: 1}, 3, 3},
		{nixlapi.BenchArgs{Time: time.Nanosecond}, 0, 0},
		{nixlapi.BenchArgs{Time: 5 * time.Millisecond}, 0, 0},
	} {
		for i := range n * 64 {
			m.B[i], m.B[n*64+i] = byte(i*3+1), 0
		}
		tt.in.Limit = 20 * time.Second
		s := nixlapi.Serve([]*nixlapi.Agent{a}, 30*time.Second, 0)
		var posted uint64
		for _, o := range nixlapi.Bench(lists[:], tt.in) {
			require.Equal(t, nixlapi.Success, o.Status)
			if tt.done > 0 {
				require.Equal(t, tt.done, o.Done)
				require.Equal(t, tt.posted, o.Posted)
			}
			require.GreaterOrEqual(t, o.Done, uint64(n/2))
			require.Equal(t, o.Done, count(o.Lat))
			require.Equal(t, o.Done, count(o.Post))
			require.Positive(t, o.Wall)
			require.Positive(t, o.Gap)
			require.LessOrEqual(t, o.Gap, o.Wall)
			posted += o.Posted
		}
		seen, err := s.Want(posted, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, posted, seen)
		require.Equal(t, m.B[:n*64], m.B[n*64:])
	}
	for _, list := range lists {
		for _, x := range list.Xfers {
			require.NoError(t, x.Release())
		}
	}
	require.NoError(t, a.Close())
}

// TestTurns: each turn posts every request once, and has a time of its own. A process reads its own memory, and no other's at an address of none.
func TestTurns(t *testing.T) {
	env := testenv.Need(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(t, err)
	a, err := lib.NewAgent("alone", nixlapi.Config{ProgThread: true})
	require.NoError(t, err)
	b, err := a.CreateBackend(env.Backend, nil)
	require.NoError(t, err)
	const n, size = 5, 64
	m, err := nixlapi.Alloc(2 * n * size)
	require.NoError(t, err)
	require.NoError(t, a.Register(nixlapi.DRAM, []nixlapi.Desc{m.Desc(0, 2*n*size)}, b))
	var all []*nixlapi.Xfer
	var from, to []nixlapi.Desc
	for i := range uint64(n) {
		from, to = append(from, m.Desc(i*size, size)), append(to, m.Desc((n+i)*size, size))
		x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, from[i:], to[i:], "alone", nixlapi.XferOpts{Backend: b})
		require.NoError(t, err)
		all = append(all, x)
	}
	fill := func() {
		for i := range n * size {
			m.B[i], m.B[n*size+i] = byte(i*3+1), 0
		}
	}
	for _, d := range []time.Duration{0, time.Millisecond} {
		fill()
		post, turn, s := nixlapi.Turns(all, d, 20*time.Second)
		require.Equal(t, nixlapi.Success, s)
		require.Positive(t, count(turn))
		require.Equal(t, n*count(turn), count(post))
		require.LessOrEqual(t, post.Sum, turn.Sum)
		require.GreaterOrEqual(t, turn.Sum, uint64(d))
		if d == 0 {
			require.EqualValues(t, 1, count(turn))
		}
		require.Equal(t, m.B[:n*size], m.B[n*size:])
	}
	fill()
	took, err := nixlapi.ReadProcess(os.Getpid(), to, from, 3)
	require.NoError(t, err)
	require.EqualValues(t, 3*n, count(took))
	require.Equal(t, m.B[:n*size], m.B[n*size:])
	_, err = nixlapi.ReadProcess(os.Getpid(), to, []nixlapi.Desc{{Addr: 8, Len: size}}, 1)
	require.ErrorIs(t, err, syscall.EFAULT)
	fill()
	require.EqualValues(t, 1, nixlapi.Copy(to, from, 0))
	require.Equal(t, m.B[:n*size], m.B[n*size:])
	for _, x := range all {
		require.NoError(t, x.Release())
	}
	require.NoError(t, a.Close())
}

// TestBenchBlocks: each set of ids is used, again and again, by requests that are made anew. Each request is timed. No other block is written.
func TestBenchBlocks(t *testing.T) {
	env := testenv.Need(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(t, err)
	a, err := lib.NewAgent("alone", nixlapi.Config{ProgThread: true})
	require.NoError(t, err)
	b, err := a.CreateBackend(env.Backend, nil)
	require.NoError(t, err)
	const n, size = 8, 64
	m, err := nixlapi.Alloc(2 * n * size)
	require.NoError(t, err)
	require.NoError(t, a.Register(nixlapi.DRAM, []nixlapi.Desc{m.Desc(0, 2*n*size)}, b))
	var from, to []nixlapi.Desc
	for i := range uint64(n) {
		from, to = append(from, m.Desc(i*size, size)), append(to, m.Desc((n+i)*size, size))
	}
	l, err := a.PrepDlist(nixlapi.LocalSide, nixlapi.DRAM, from, b)
	require.NoError(t, err)
	r, err := a.PrepDlist("alone", nixlapi.DRAM, to, b)
	require.NoError(t, err)
	msg := []byte("n")
	work := []nixlapi.Work{{Blocks: []nixlapi.Blocks{{Op: nixlapi.Write, Local: l, Remote: r, N: 2, LocalIDs: []int32{5, 0, 2, 7, 6, 1}, RemoteIDs: []int32{1, 2, 3, 4, 5, 6},
		Opts: nixlapi.XferOpts{Backend: b, Notif: &msg}}}}}
	for i := range n * size {
		m.B[i], m.B[n*size+i] = byte(i*3+1), 0
	}
	for _, in := range []nixlapi.BenchArgs{{Count: 1, Limit: time.Minute}, {Warmup: 4, Count: 11, Limit: time.Minute}} {
		s := nixlapi.Serve([]*nixlapi.Agent{a}, 30*time.Second, 0)
		out := nixlapi.Bench(work, in)[0]
		require.Equal(t, nixlapi.Success, out.Status)
		require.Equal(t, max(3, in.Count), out.Done, "each set once")
		for _, h := range []nixlapi.Times{out.Lat, out.Post, out.Make} {
			require.Equal(t, out.Done, count(h))
		}
		seen, err := s.Want(out.Posted, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, out.Posted, seen)
	}
	for to, from := range []int{-1, 5, 0, 2, 7, 6, 1, -1} {
		want := make([]byte, size)
		if from >= 0 {
			copy(want, m.B[from*size:])
		}
		require.Equal(t, want, m.B[(n+to)*size:(n+to+1)*size], "block %d", to)
	}
	require.NoError(t, l.Release())
	require.NoError(t, r.Release())
	require.NoError(t, a.Close())
}

func count(t nixlapi.Times) (n uint64) {
	for _, c := range t.N {
		n += c
	}
	return n
}

package side

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/layout"
	"gorail/gorail/bench/memory"
	"gorail/gorail/measure"
)

// TestCheck: Check finds every single wrong byte, in a block and beside one, with blocks in order and at random.
func TestCheck(t *testing.T) {
	for _, ids := range []string{"", layout.Random} {
		p := measure.Point{Op: "WRITE", Block: 100, Batch: 3, Depth: 2, Threads: 2, IDs: ids, Pool: 2}
		buf, err := memory.Alloc("dram", 0, p.Room())
		require.NoError(t, err)
		s := &Server{buf: buf}
		w := p.Place()
		m := MemArgs{Place: w, Slots: 4, IDs: ids, Order: 7, Seed: 1, Between: 2}
		require.NoError(t, s.Fill(m, nil))
		require.NoError(t, s.Check(m, nil))
		last := w.At(3, 5)
		for at, says := range map[uint64]string{0: "did not write", 99: "did not write", 100: "beside", last + 99: "did not write", last + 100: "beside"} {
			buf.Host()[at] ^= 0x40
			require.ErrorContains(t, s.Check(m, nil), says, "byte %d", at)
			buf.Host()[at] ^= 0x40
		}
		require.NoError(t, s.Check(m, nil))
		m.Order = 8
		require.Equal(t, ids != "", s.Check(m, nil) != nil, "blocks in another order")
		require.NoError(t, buf.Free())
	}
}

// TestRemote: a process that serves another host keeps its own folders, and refuses files, processes and memory of others.
func TestRemote(t *testing.T) {
	t.Setenv("NIXL_WHEEL_DIR", "/own")
	s := &Server{remote: true, in: OpenArgs{Wheel: "/theirs", PluginDir: "/theirs"}}
	require.NoError(t, s.environ())
	require.Equal(t, "/own", s.in.Wheel)
	require.Empty(t, s.in.PluginDir)
	for says, in := range map[string]OpenArgs{
		"environment variables": {Backend: "GORAIL", Env: map[string]string{"LD_PRELOAD": "x"}},
		"parameter log_file":    {Backend: "GORAIL", Params: map[string]string{"log_file": "/x"}},
		"backend \"../x\"":      {Backend: "../x"},
		"process_vm":            {Limit: "process_vm"},
		"65 agents":             {Backend: "GORAIL", Agents: 65},
		"half of what is free":  {Backend: "GORAIL", Room: 1 << 60},
	} {
		require.ErrorContains(t, (&Server{remote: true}).Open(in, &OpenOut{}), says)
	}
	require.ErrorIs(t, s.Load(Peer{}, nil), errInitiator)
	require.ErrorIs(t, s.Run(measure.Pace{}, nil), errInitiator)
	require.ErrorIs(t, s.Notify(NotifyArgs{}, nil), errInitiator)
	require.ErrorIs(t, s.Prepare(PointArgs{}, nil), errInitiator)
}

// TestOutside: descriptors outside the buffer are refused before anything is copied.
func TestOutside(t *testing.T) {
	buf, err := memory.Alloc("dram", 0, 1<<20)
	require.NoError(t, err)
	s := &Server{remote: true, buf: buf, in: OpenArgs{Limit: "tcp"}}
	p := measure.Point{Op: "WRITE", Block: 4096, Batch: 2, Depth: 1, Threads: 1}
	at := p.Place()
	require.NoError(t, s.points(p))
	for name, bad := range map[string]func(*measure.Point){"length": func(p *measure.Point) { p.Block = 2 << 20 }, "number": func(p *measure.Point) { p.Batch = 1 << 30 },
		"pool": func(p *measure.Point) { p.Pool = 1 << 30 }, "negative": func(p *measure.Point) { p.Batch = -1 }} {
		q := p
		bad(&q)
		require.Error(t, s.Prepare(PointArgs{Point: q}, &PointOut{}), name)
	}
	for name, bad := range map[string]func(*layout.Place){
		"length": func(w *layout.Place) { w.Len = 2 << 20 },
		"number": func(w *layout.Place) { w.N = 1 << 30 }, "stride": func(w *layout.Place) { w.Stride = 1 << 63 },
		"negative": func(w *layout.Place) { w.N = -1 },
	} {
		w := at
		bad(&w)
		require.Error(t, s.Fill(MemArgs{Place: w, Slots: 1}, nil), name)
		require.Error(t, s.Check(MemArgs{Place: w, Slots: 1}, nil), name)
	}
	require.Error(t, s.Fill(MemArgs{Place: at, Slots: -1}, nil))
	require.Error(t, s.Fill(MemArgs{Place: at, Slots: 1 << 40}, nil))
	require.Error(t, s.Fill(MemArgs{CopyTarget: true}, nil))
	over := layout.Place{Len: 1, N: mostDescs} // all descriptors and slots lie one over the other
	require.Error(t, s.Fill(MemArgs{Place: over, Slots: 1 << 20}, nil))
	p.Threads, p.Batch, p.Block = mostThreads, mostDescs, 1
	require.Error(t, s.points(p))
	require.NoError(t, buf.Free())
}

package side

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/cmd/gorail/bench/layout"
	"gorail/cmd/gorail/bench/memory"
	"gorail/cmd/gorail/measure"
)

// TestCheck: Check finds every single wrong byte, in a block and beside one, with blocks in order and at random.
func TestCheck(t *testing.T) {
	for _, ids := range []string{"", layout.Random} {
		p := measure.Point{Op: "WRITE", Block: 100, Batch: 3, Depth: 2, Threads: 2, IDs: ids, Pool: 2}
		buf, err := memory.Alloc("dram", 0, p.Room())
		require.NoError(t, err)
		s := &Server{buf: buf}
		w := p.Place(0, 0, 1)
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

// TestRemote: a process that serves another host keeps its own folders, and refuses an environment.
func TestRemote(t *testing.T) {
	t.Setenv("NIXL_WHEEL_DIR", "/own")
	s := &Server{remote: true, in: OpenArgs{Wheel: "/theirs", PluginDir: "/theirs"}}
	require.NoError(t, s.environ())
	require.Equal(t, "/own", s.in.Wheel)
	require.Empty(t, s.in.PluginDir)
	s.in.Env = map[string]string{"LD_PRELOAD": "x"}
	require.Error(t, s.environ())
}

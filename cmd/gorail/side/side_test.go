package side

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/cmd/gorail/measure"
	"gorail/nixlapi"
)

// TestCheck: Check finds every single wrong byte, in a block and beside one.
func TestCheck(t *testing.T) {
	p := measure.Point{Op: "WRITE", Block: 100, Batch: 3, Depth: 2, Threads: 2}
	buf, err := nixlapi.Alloc(int(p.Room()))
	require.NoError(t, err)
	s := &Server{buf: buf}
	m := MemArgs{Point: p, Seed: 1, Between: 2}
	require.NoError(t, s.Fill(m, nil))
	require.NoError(t, s.Check(m, nil))
	last := p.Offsets(1, 1)[2]
	for at, says := range map[uint64]string{0: "did not write", 99: "did not write", 100: "beside", last + 99: "did not write", last + p.Stride() - 1: "beside"} {
		s.buf.B[at] ^= 0x40
		require.ErrorContains(t, s.Check(m, nil), says, "byte %d", at)
		s.buf.B[at] ^= 0x40
	}
	require.NoError(t, s.Check(m, nil))
	require.NoError(t, buf.Free())
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

package nixl_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/nixl"
	"gorail/test/testenv"
)

func TestStatusError(t *testing.T) {
	require.NoError(t, nixl.InProgress.Err("x"))
	err := nixl.ErrMissing.Err("query_mem")
	require.EqualError(t, err, "nixl_capi_query_mem: not in this libnixl_capi.so")
	require.Equal(t, nixl.ErrMissing, nixl.StatusOf(err))
	require.Equal(t, nixl.Success, nixl.StatusOf(nil))
}

func TestOpenWithoutWheel(t *testing.T) {
	_, err := nixl.Open(t.TempDir())
	require.ErrorContains(t, err, "no NIXL wheel")
}

// TestOneProcess walks through the whole binding with two agents.
func TestOneProcess(t *testing.T) {
	env := testenv.Need(t)
	require.NoError(t, os.Setenv("NIXL_PLUGIN_DIR", env.PluginDir))
	lib, err := nixl.Open(env.WheelDir)
	require.NoError(t, err)

	mk := func(name string) (*nixl.Agent, *nixl.Backend, *nixl.Buffer) {
		a, err := lib.NewAgent(name, nixl.Config{ProgThread: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		plugins, err := a.Plugins()
		require.NoError(t, err)
		require.Contains(t, plugins, env.Backend)
		params, mems, err := a.PluginParams(env.Backend)
		require.NoError(t, err)
		require.Contains(t, mems, nixl.DRAM)
		b, err := a.CreateBackend(env.Backend, params)
		require.NoError(t, err)
		_, mems, err = a.BackendParams(b)
		require.NoError(t, err)
		require.Contains(t, mems, nixl.DRAM)
		m, err := nixl.Alloc(1<<20, nixl.Anon)
		require.NoError(t, err)
		require.NoError(t, a.Register(nixl.DRAM, []nixl.Desc{m.Desc(0, 1<<20)}, b))
		return a, b, m
	}
	a, ab, am := mk("one")
	b, _, bm := mk("two")
	for i := range am.B {
		am.B[i] = byte(i * 7)
	}
	md, err := b.Metadata()
	require.NoError(t, err)
	name, err := a.Load(md)
	require.NoError(t, err)
	require.Equal(t, "two", name)
	require.True(t, a.Knows("two"))
	require.False(t, a.Knows("three"))

	msg := []byte("done")
	x, err := a.CreateXfer(nixl.Write, nixl.DRAM, []nixl.Desc{am.Desc(0, 1<<20)},
		[]nixl.Desc{bm.Desc(0, 1<<20)}, "two", nixl.XferOpts{Backend: ab, Notif: &msg})
	require.NoError(t, err)
	by, err := x.Backend()
	require.NoError(t, err)
	require.Equal(t, env.Backend, by)
	s := x.Post()
	var got []nixl.Notif
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && (s == nixl.InProgress || len(got) == 0); {
		if s == nixl.InProgress {
			s = x.Status()
		}
		n, err := b.Notifs()
		require.NoError(t, err)
		got = append(got, n...)
	}
	require.Equal(t, nixl.Success, s)
	require.Equal(t, []nixl.Notif{{From: "one", Msg: msg}}, got)
	require.Equal(t, am.B, bm.B)
	require.NoError(t, x.Release())

	// The same over prepared lists.
	l, err := a.PrepDlist(nixl.LocalSide, nixl.DRAM, []nixl.Desc{am.Desc(0, 100), am.Desc(200, 100)}, ab)
	require.NoError(t, err)
	r, err := a.PrepDlist("two", nixl.DRAM, []nixl.Desc{bm.Desc(0, 100), bm.Desc(300, 100)}, ab)
	require.NoError(t, err)
	y, err := a.MakeXfer(nixl.Read, l, []int32{0, 1}, r, []int32{1, 0}, nixl.XferOpts{})
	require.NoError(t, err)
	s = y.Post()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && s == nixl.InProgress; {
		s = y.Status()
	}
	require.Equal(t, nixl.Success, s)
	require.Equal(t, bm.B[300:400], am.B[0:100])
	require.Equal(t, bm.B[0:100], am.B[200:300])
	require.NoError(t, y.Release())
	require.NoError(t, l.Release())
	require.NoError(t, r.Release())
	require.NoError(t, a.Invalidate("two"))
}

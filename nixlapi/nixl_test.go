package nixlapi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
)

func TestStatusError(t *testing.T) {
	require.NoError(t, nixlapi.InProgress.Err("x"))
	err := nixlapi.ErrMissing.Err("query_mem")
	require.EqualError(t, err, "nixl_capi_query_mem: not in this libnixl_capi.so")
	require.Equal(t, nixlapi.ErrMissing, nixlapi.StatusOf(err))
	require.Equal(t, nixlapi.Success, nixlapi.StatusOf(nil))
}

func TestOpenWithoutWheel(t *testing.T) {
	_, err := nixlapi.Open(t.TempDir())
	require.ErrorContains(t, err, "no NIXL wheel")
}

// TestOneProcess exercises the whole binding with two agents.
func TestOneProcess(t *testing.T) {
	env := testenv.Need(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(t, err)

	mk := func(name string) (*nixlapi.Agent, *nixlapi.Backend, *nixlapi.Buffer) {
		a, err := lib.NewAgent(name, nixlapi.Config{ProgThread: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		plugins, err := a.Plugins()
		require.NoError(t, err)
		require.Contains(t, plugins, env.Backend)
		params, mems, err := a.PluginParams(env.Backend)
		require.NoError(t, err)
		require.Contains(t, mems, nixlapi.DRAM)
		b, err := a.CreateBackend(env.Backend, params)
		require.NoError(t, err)
		_, mems, err = a.BackendParams(b)
		require.NoError(t, err)
		require.Contains(t, mems, nixlapi.DRAM)
		m, err := nixlapi.Alloc(1 << 20)
		require.NoError(t, err)
		require.NoError(t, a.Register(nixlapi.DRAM, []nixlapi.Desc{m.Desc(0, 1<<20)}, b))
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
	x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{am.Desc(0, 1<<20)},
		[]nixlapi.Desc{bm.Desc(0, 1<<20)}, "two", nixlapi.XferOpts{Backend: ab, Notif: &msg})
	require.NoError(t, err)
	by, err := x.Backend()
	require.NoError(t, err)
	require.Equal(t, env.Backend, by)
	s := x.Post()
	var got []nixlapi.Notif
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && (s == nixlapi.InProgress || len(got) == 0); {
		if s == nixlapi.InProgress {
			s = x.Status()
		}
		n, err := b.Notifs()
		require.NoError(t, err)
		got = append(got, n...)
	}
	require.Equal(t, nixlapi.Success, s)
	require.Equal(t, []nixlapi.Notif{{From: "one", Msg: msg}}, got)
	require.Equal(t, am.B, bm.B)
	require.NoError(t, x.Release())

	// The same with prepared lists.
	l, err := a.PrepDlist(nixlapi.LocalSide, nixlapi.DRAM, []nixlapi.Desc{am.Desc(0, 100), am.Desc(200, 100)}, ab)
	require.NoError(t, err)
	r, err := a.PrepDlist("two", nixlapi.DRAM, []nixlapi.Desc{bm.Desc(0, 100), bm.Desc(300, 100)}, ab)
	require.NoError(t, err)
	y, err := a.MakeXfer(nixlapi.Read, l, []int32{0, 1}, r, []int32{1, 0}, nixlapi.XferOpts{})
	require.NoError(t, err)
	s = y.Post()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && s == nixlapi.InProgress; {
		s = y.Status()
	}
	require.Equal(t, nixlapi.Success, s)
	require.Equal(t, bm.B[300:400], am.B[0:100])
	require.Equal(t, bm.B[0:100], am.B[200:300])
	require.NoError(t, y.Release())
	require.NoError(t, l.Release())
	require.NoError(t, r.Release())
	require.NoError(t, a.Invalidate("two"))
}

// Package wheels runs one plugin binary in several NIXL releases: those that NIXL_WHEELS lists (site-packages folders
// joined by ':'), else the one installed.
package wheels

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/nixl"
	"gorail/test/testenv"
	"gorail/test/worker"
)

const limit = 30 * time.Second

func TestMain(m *testing.M) {
	worker.MaybeRun()
	os.Exit(m.Run())
}

// TestWheels moves verified bytes both ways between two agents of each release, with and without progress thread.
func TestWheels(t *testing.T) {
	env := testenv.Need(t)
	dirs := filepath.SplitList(os.Getenv("NIXL_WHEELS"))
	if len(dirs) == 0 {
		dirs = []string{env.WheelDir}
	}
	for _, dir := range dirs {
		env.WheelDir = dir
		testenv.SkipOrFail(t, env.Check())
		for name, on := range map[string]bool{"progress": true, "no progress": false} {
			t.Run(filepath.Base(dir)+"/"+name, func(t *testing.T) { roundTrip(t, env, on) })
		}
	}
}

func roundTrip(t *testing.T, env testenv.Env, progress bool) {
	const size = 3<<20 + 77
	agent := func(name string) *worker.Agent {
		return worker.Start(t, worker.Options{Env: env}).Agent(
			worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: progress})
	}
	ini, tgt := agent("alice"), agent("bob")
	tgt.Polling(true)
	a, b := ini.Buffer(size, 0xa), tgt.Buffer(size, 0xb)
	ini.Learn(tgt)

	for _, op := range []nixl.Op{nixl.Write, nixl.Read} {
		a.Fill(0xa)
		b.Fill(0xb)
		x := ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("moved")})
		for range 5 {
			x.Do(limit)
			require.Equal(t, []nixl.Notif{{From: "alice", Msg: []byte("moved")}}, tgt.WaitNotifs(1, limit))
		}
		require.NoError(t, x.Release())
		seed := uint64(0xa)
		if op == nixl.Read {
			seed = 0xb
		}
		a.Want(seed)
		b.Want(seed)
	}

	require.NoError(t, ini.GenNotif("bob", []byte("bye")))
	require.Len(t, tgt.WaitNotifs(1, limit), 1)
	require.NoError(t, ini.Invalidate("bob"))
}

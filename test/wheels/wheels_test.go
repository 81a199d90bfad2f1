// Package wheels runs one plugin binary in several NIXL releases: those of NIXL_WHEELS (site-packages folders joined by
// ':'), else the installed one.
package wheels

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
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
		skip.OrFail(t, env.Check())
		for name, on := range map[string]bool{"progress": true, "no progress": false} {
			t.Run(filepath.Base(dir)+"/"+name, func(t *testing.T) { roundTrip(t, env, on) })
		}
	}
}

// TestWheelsCompared: the plugin compared the table of backend functions of each release, and logs the release.
func TestWheelsCompared(t *testing.T) {
	env := testenv.Need(t)
	dirs := filepath.SplitList(os.Getenv("NIXL_WHEELS"))
	if len(dirs) == 0 {
		dirs = []string{env.WheelDir}
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			env.WheelDir = dir
			info, err := filepath.Glob(filepath.Join(dir, "nixl_cu*-*.dist-info"))
			require.NoError(t, err)
			require.Len(t, info, 1)
			_, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info[0]), ".dist-info"), "-")
			w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=debug"}})
			w.Agent(worker.AgentConfig{Name: "alice", Backend: env.Backend})
			var line string
			for end := time.Now().Add(limit); line == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				for l := range strings.Lines(w.Output()) {
					if strings.Contains(l, "NIXL's table of backend functions") {
						line = l
					}
				}
			}
			require.Contains(t, line, "NIXL "+version+" (")
			require.Contains(t, line, testenv.PluginFile("POSIX"))
		})
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

	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		a.Fill(0xa)
		b.Fill(0xb)
		x := ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("moved")})
		for range 5 {
			x.Do(limit)
			require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("moved")}}, tgt.WaitNotifs(1, limit))
		}
		require.NoError(t, x.Release())
		seed := uint64(0xa)
		if op == nixlapi.Read {
			seed = 0xb
		}
		a.Want(seed)
		b.Want(seed)
	}

	require.NoError(t, ini.GenNotif("bob", []byte("bye")))
	require.Len(t, tgt.WaitNotifs(1, limit), 1)
	require.NoError(t, ini.Invalidate("bob"))
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestCrossings counts the calls from C into Go. A request of any size takes one call to prepare it and one to post it.
// There is no call to post it again, to ask for its status or to ask for notifications.
func TestCrossings(t *testing.T) {
	t.Parallel()
	env := ours(t)
	for _, n := range []int{1, 100_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "stats.json")
			copied, cgo := watched(t, env, "crosscall2")
			w := process(t, worker.Options{Env: copied})
			p := &pairOf{env: env, ini: agent(w, env, "alice", params("stats_file", file, "peer_timeout", "30s")), tgt: start(t, "bob")}
			p.tgt.Polling(true)
			at := scattered(0, 256, 64, n, 0)
			a, b := p.buffers(at.End())
			p.tgt.Learn(p.ini)
			warm := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 8), Remote: b.Span(0, 8), Peer: "bob"})
			warm.Do(limit)

			var x *worker.Xfer
			cgo.expect(t, 1, "prepare", func() {
				x = p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(at), Remote: b.At(at), Peer: "bob", Notif: []byte("n")})
			})
			const posts = 3
			for i := range posts {
				p.tgt.Stop() // a transfer larger than the sockets' buffers stays in progress
				cgo.expect(t, []uint64{1, 0, 0}[i], "post and poll", func() {
					require.False(t, x.Loop(worker.LoopArgs{N: 1, Timeout: 50 * time.Millisecond}).Status.Failed())
				})
				p.tgt.Cont()
				cgo.expect(t, 0, "poll to the end", func() { require.Equal(t, nixlapi.Success, x.Wait(limit)) })
			}
			const more = 20
			cgo.expect(t, 0, "post again", func() {
				ran := x.Loop(worker.LoopArgs{N: more, Timeout: limit})
				require.Equal(t, more, ran.Done, "status %v", ran.Status)
			})
			require.Len(t, p.tgt.WaitNotifs(posts+more, limit), posts+more)
			want(nixlapi.Write, a, b, at, at)

			const notifs = 1000
			cgo.expect(t, 0, "take notifications", func() {
				require.Nil(t, p.tgt.GenNotifsAsync("alice", "n", notifs).Wait().Err)
				require.Len(t, p.ini.WaitNotifs(notifs, limit), notifs)
			})
			require.NoError(t, p.ini.Close())
			core := counters(t, file)
			require.EqualValues(t, 2, core["cross_prep"])
			require.EqualValues(t, 2, core["cross_post"])
			require.EqualValues(t, 2, core["to_c_post"])
			require.EqualValues(t, posts+more-1, core["reposts"])
			require.EqualValues(t, notifs, core["notifs_received"])
		})
	}
}

// counters reads the core's counters from an engine's stats_file.
func counters(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var s struct{ Core map[string]uint64 }
	require.NoError(t, json.Unmarshal(b, &s))
	for _, k := range []string{"cross_prep", "cross_post", "cross_other"} {
		require.Contains(t, s.Core, k)
	}
	return s.Core
}

// watched copies the plugin to a new file and returns a uprobe in that file. The probe counts no other test's calls.
func watched(t *testing.T, env testenv.Env, symbol string) (testenv.Env, *crossings) {
	t.Helper()
	name := testenv.PluginFile(env.Backend)
	lib, err := os.ReadFile(filepath.Join(env.PluginDir, name))
	require.NoError(t, err)
	env.PluginDir = t.TempDir()
	path := filepath.Join(env.PluginDir, name)
	require.NoError(t, os.WriteFile(path, lib, 0o755))
	p, err := openProbe(path, symbol)
	if err != nil {
		t.Logf("no uprobe, only the engine's counters: %v", err)
		return env, &crossings{}
	}
	t.Cleanup(p.close)
	return env, &crossings{p}
}

// crossings counts calls between C and Go by a uprobe, independent of the engine's counters. Without a uprobe p is nil.
type crossings struct{ p *probe }

// expect runs f and requires n calls during f.
func (c *crossings) expect(t *testing.T, n uint64, what string, f func()) {
	t.Helper()
	if c.p == nil {
		f()
		return
	}
	before := c.p.count()
	f()
	require.Equal(t, n, c.p.count()-before, what)
}

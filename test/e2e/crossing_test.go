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
	for _, n := range []int{1, 1000, 100_000} {
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

// TestCrossingsBack counts the calls from Go into C. A request of any size takes one call to prepare it, one more for a
// long run of pairs of the same two regions (core.Pairs), and one for its first post. The engine's goroutines call C, too: the test takes the least count of rounds, up to 200: on a starved host a call of the engine's falls into most of them.
func TestCrossingsBack(t *testing.T) {
	t.Parallel()
	env := ours(t)
	copied, cgo := watched(t, env, "runtime.cgocall")
	if cgo.p == nil {
		t.Skip("only a uprobe counts calls from Go into C")
	}
	p := &pairOf{env: env, ini: agent(process(t, worker.Options{Env: copied}), env, "alice"), tgt: start(t, "bob")}
	p.tgt.Polling(true)
	at := scattered(0, 64, 64, 100_000, 0)
	a, b := p.buffers(at.End())
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 8), Remote: b.Span(0, 8), Peer: "bob"}).Do(limit) // the initiator has the keys now
	for n, want := range map[int]uint64{1: 1, 1000: 2, 100_000: 2} {
		at.Count = n
		made, posted, again := ^uint64(0), ^uint64(0), ^uint64(0)
		for round := 0; round < 200 && (made > want || posted > 1 || again > 0); round++ {
			before, began := cgo.p.count(), time.Now()
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(at), Remote: b.At(at), Peer: "bob", Notif: []byte("n")})
			calls := cgo.p.count() - before
			// The engine's background calls, ten a second, fall into a request that takes long.
			calls -= min(calls-want, uint64(time.Since(began)/(100*time.Millisecond)))
			made = min(made, calls)
			for _, least := range []*uint64{&posted, &again} {
				p.tgt.Stop() // so that the transfer does not end within the count
				before = cgo.p.count()
				require.False(t, x.Post().Failed())
				*least = min(*least, cgo.p.count()-before)
				p.tgt.Cont()
				require.Equal(t, nixlapi.Success, x.Wait(limit))
			}
			require.NoError(t, x.Release())
		}
		require.Equal(t, want, made, "prepare %d operations", n)
		require.EqualValues(t, 1, posted, "post %d operations", n)
		require.Zero(t, again, "post %d operations again", n)
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

// TestStatsFileFromEnvironment: GORAIL_STATS_FILE has the effect of the option stats_file.
func TestStatsFileFromEnvironment(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stats.json")
	env := ours(t)
	w := process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_STATS_FILE=" + file}})
	works(t, w, env)
	require.EqualValues(t, 1, counters(t, file)["cross_post"])
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

package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
	"gorail/gorail/study/peers"
	"gorail/gorail/study/week"
)

// studied runs a study at its smallest, and returns its result and its page.
func studied(t *testing.T, name string, args ...string) (*result.Result, string) {
	t.Helper()
	env := needs(t)
	dir := t.TempDir()
	files := "html=" + filepath.Join(dir, "a.html") + ",json=" + filepath.Join(dir, "a.json") + ",md=-"
	if testing.Short() {
		args = append(args, "--plugins", env.PluginDir) // without UCX
	}
	out, log, err := gorail(append([]string{"study", name, "--smallest", "--wheel", env.WheelDir, "--output", files}, args...)...)
	require.NoError(t, err, log)
	require.Contains(t, out, "## Findings")
	text, err := os.ReadFile(filepath.Join(dir, "a.json"))
	require.NoError(t, err)
	r := &result.Result{}
	require.NoError(t, json.Unmarshal(text, r))
	require.Empty(t, r.Ended)
	require.Empty(t, r.Failed)
	require.NotEmpty(t, r.Findings)
	require.NotEmpty(t, r.Sections)
	text, err = os.ReadFile(filepath.Join(dir, "a.html"))
	require.NoError(t, err)
	require.Contains(t, string(text), r.Sections[0].Title)
	return r, string(text)
}

// TestStudyKV: all requests of two modes end, and the bytes of their slots are compared.
func TestStudyKV(t *testing.T) {
	r, _ := studied(t, "kv", "--time", "200ms")
	require.Len(t, r.Sections, 1)
	require.Len(t, r.Sections[0].Tables[0].Rows, 3)
	for _, row := range r.Sections[0].Tables[0].Rows {
		require.Equal(t, "0", row[8].String(), "failed")
		require.NotEqual(t, "0", row[9].String(), "compared")
	}
}

// TestStudyPeers: a hub meets its peers, each writes, and after all were killed the hub meets those that come back.
func TestStudyPeers(t *testing.T) {
	r, _ := studied(t, "peers")
	rows := rowsOf(r.Sections[0].Tables[0])
	require.Len(t, rows, 1)
	row := rows[0]
	require.Equal(t, 8.0, *row[peers.ColWriters].Value)
	for _, name := range []string{peers.ColAdd, peers.ColConnect, peers.ColFirst, peers.ColFDs, peers.ColSum, peers.ColWave} {
		require.Positive(t, *row[name].Value, name)
	}
	require.LessOrEqual(t, *row[peers.ColWave].Value, 5.0, "s")
	require.Contains(t, strings.Join(r.Findings, "\n"), "8 peers are added")
}

// TestStudyPeersMesh: all agents meet all others, and nothing else is measured.
func TestStudyPeersMesh(t *testing.T) {
	r, _ := studied(t, "peers", "--mesh", "4", "--processes", "2")
	require.Len(t, r.Sections[0].Tables, 1)
	rows := rowsOf(r.Sections[0].Tables[0])
	require.Len(t, rows, 1)
	require.Equal(t, 4.0, *rows[0]["agents"].Value)
	require.Positive(t, *rows[0][peers.ColMesh].Value)
	require.Positive(t, *rows[0][peers.ColMeshCPU].Value)
}

// TestStudyWeek: 20,000 transfers, and peers, agents and processes that come and go. What the two processes hold that stay does not grow, by bounds
// that one object, descriptor, thread, goroutine or file for each agent or restart would break. On a busy machine some scatter too much to tell.
func TestStudyWeek(t *testing.T) {
	r, _ := studied(t, "week", "--over", week.Default, "--param", "connect_timeout=5s", "--param", "peer_timeout=10s")
	done := rowsOf(r.Sections[0].Tables[0])[0]
	for name, least := range map[string]float64{week.ColTransfers: 20_000, week.ColMeets: 480, week.ColAgents: 360, week.ColRestarts: 48} {
		require.GreaterOrEqual(t, *done[name].Value, least, name)
	}
	require.Zero(t, *done[week.ColWrong].Value)
	held := rowsOf(r.Sections[0].Tables[1])
	require.Len(t, held, 22)
	for _, row := range held {
		require.NotEqual(t, week.Grows, row[week.ColVerdict].Text, "%+v", row) // a busy machine scatters some: not shown
	}
}

// TestStudyWeights: a trainer and three workers move all tensors in each layout and way, also by a tree; beside UCX in the long form.
func TestStudyWeights(t *testing.T) {
	r, page := studied(t, "weights", "--memory", "dram", "--workers", "3", "--fan-out", "2", "--scale", "2048", "--repeats", "1", "--time", "20ms")
	ways := map[string]int{}
	for _, row := range r.Sections[0].Tables[0].Rows {
		ways[row[2].Text]++
		require.Positive(t, *row[6].Value, "GB/s: %v", row)
		require.Positive(t, *row[7].Value, "to plain copies: %v", row)
	}
	require.Equal(t, 11, ways["GORAIL"], "READs of two kinds and WRITE of three layouts, a tree of two")
	require.Equal(t, !testing.Short(), ways["UCX"] == 11, ways)
	for _, row := range r.Sections[0].Tables[2].Rows {
		require.Equal(t, "1,000", row[3].String(), "requests: %v", row)
		if row[2].Text == "GORAIL" {
			require.Less(t, *row[12].Value, *row[6].Value/100, "posts through Go: %v", row)
			require.Less(t, *row[13].Value, 4.0, "Go objects a post: %v", row) // of the whole process, in 4,000 posts: TestRepostAllocatesNothing has posts alone
		}
	}
	require.Len(t, r.Sections[0].Tables[1].Rows, 6, "memcpy in one and in several threads, three layouts")
	require.Contains(t, page, "WRITE, tree of fan-out 2")
	require.Contains(t, strings.Join(r.Findings, "\n"), "while the reader registers")
}

// TestStudyFullDisk: the page finds no room on its disk, and is kept elsewhere.
func TestStudyFullDisk(t *testing.T) {
	env := needs(t)
	t.Setenv("TMPDIR", t.TempDir())
	out, log, err := gorail("study", "kv", "--smallest", "--wheel", env.WheelDir, "--plugins", env.PluginDir, "--output", "html=/dev/full")
	require.ErrorContains(t, err, "html is not written to /dev/full", log)
	require.ErrorContains(t, err, "no space left on device")
	require.ErrorContains(t, err, "the page is kept in")
	require.Contains(t, out, "a request of")
	kept, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "gorail-*.html"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	text, err := os.ReadFile(kept[0])
	require.NoError(t, err)
	require.Contains(t, string(text), "a request of")
}

// onLine calls f once, at the first line that contains a word.
type onLine struct {
	word string
	f    func()
}

func (o *onLine) Write(b []byte) (int, error) {
	if o.f != nil && strings.Contains(string(b), o.word) {
		o.f()
		o.f = nil
	}
	return len(b), nil
}

// TestStudyKVInterrupted: the same for a study with processes of its own, which the Control-C does not reach.
func TestStudyKVInterrupted(t *testing.T) {
	env := needs(t)
	file := filepath.Join(t.TempDir(), "a.json")
	log := &onLine{"1 of", func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) }}
	err := run([]string{"study", "kv", "--smallest", "--wheel", env.WheelDir, "--plugins", env.PluginDir, "--output", "json=" + file}, io.Discard, log)
	require.ErrorContains(t, err, "interrupted")
	text, failed := os.ReadFile(file)
	if failed != nil {
		require.EqualError(t, err, "interrupted before anything was measured")
		return
	}
	r := &result.Result{}
	require.NoError(t, json.Unmarshal(text, r))
	require.Equal(t, "interrupted", r.Ended)
	require.Len(t, r.Sections[0].Tables[0].Rows, 1, "alone")
}

// TestStudyErrors: wrong arguments are errors before anything is measured.
func TestStudyErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, c := range []struct{ args, says string }{
		{"kv --output png", "want json, md, html"},
		{"kv --output html=" + dir + "/no/page.html", "no such file"},
		{"kv --wheel /nowhere", "/nowhere"},
		{"kv --peer no-such-host.invalid", "no-such-host.invalid"},
		{"rails --peer 127.0.0.1:1", "is gorail bench --listen or gorail doctor --listen running there?"},
		{"kv --peer 127.0.0.1:1", "is gorail bench --listen or gorail doctor --listen running there?"},
		{"kv --model gpt", "no model"},
		{"kv --chaos fire", "want campaign, or some of kill"},
		{"kv --compare UCX", "a campaign (--chaos) compares backends"},
		{"peers --peers 1", "want 2 to 1000 peers"},
		{"peers --mesh 1", "want 2 to 1000 peers"},
		{"peers --param x", "write NAME=VALUE"},
		{"weights --workers 4", "want 1 to 3 workers"},
		{"weights --model gpt", "no model"},
		{"weights --memory disk", "want dram or vram"},
	} {
		_, _, err := gorail(append([]string{"study"}, strings.Fields(c.args)...)...)
		require.ErrorContains(t, err, c.says, c.args)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "what was not written to is removed")
}

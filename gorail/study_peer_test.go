package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
	"gorail/gorail/study/kv/campaign"
	"gorail/test/lab"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// far is gorail doctor --listen in a network namespace of its own, on a host whose clock is days ahead.
type far struct {
	here, there *lab.Host

	env  testenv.Env
	addr string // host:port
	at   string // with the token
	log  string // the file with what the listener and its processes say

	began func() // called when a study measures rail0; nil: nothing is
}

// aheadBy is how many seconds the clock of the far host is ahead.
const aheadBy = "500000"

// faraway makes two network namespaces with rails of a rate in Mbit/s, and starts a listener in one of them, at the
// last rail, as command says: doctor or bench.
func faraway(t *testing.T, command string, rails int, mbit uint64) *far {
	t.Helper()
	skip.UnlessRoot(t, "network namespaces")
	f := &far{env: needs(t), log: filepath.Join(t.TempDir(), "listener.log")}
	f.here, f.there = lab.Rails(t, 79, slices.Repeat([]uint64{mbit}, rails)...)
	at := fmt.Sprintf("10.79.%d.2", rails-1)
	args := []string{built(t, f.env), command, "--listen", at + ":0"}
	clock := []string{"unshare", "--time", "--monotonic", aheadBy, "--fork", "--kill-child"}
	if exec.Command(clock[0], append(clock[1:], "true")...).Run() == nil {
		args = append(clock, args...)
	} else {
		t.Log("no time namespaces: both hosts have one clock")
	}
	c := exec.Command(args[0], args[1:]...)
	c.Env = append(os.Environ(), "NIXL_PLUGIN_DIR="+f.env.PluginDir, "NIXL_WHEEL_DIR="+f.env.WheelDir)
	said, err := c.StderrPipe()
	require.NoError(t, err)
	f.there.In(func() { require.NoError(t, c.Start()) })
	log, err := os.Create(f.log)
	require.NoError(t, err)
	lines := bufio.NewReader(said)
	first, err := lines.ReadString('\n')
	require.NoError(t, err)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = lines.WriteTo(log)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-copied
		_ = c.Wait()
		_ = log.Close()
	})
	for _, word := range strings.Fields(first) {
		if strings.HasPrefix(word, at+":") {
			f.at = word
			f.addr, _, _ = strings.Cut(word, "#")
		}
	}
	require.NotEmpty(t, f.addr, first)
	return f
}

// study runs a study in the other namespace, and returns its result; nil if it wrote none.
func (f *far) study(t *testing.T, name string, args ...string) (r *result.Result, log string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.json")
	c := exec.Command(built(t, f.env), append([]string{"study", name, "--smallest", "--peer", f.at, "--wheel", f.env.WheelDir, "--plugins", f.env.PluginDir, "--output", "json=" + file}, args...)...)
	var both bytes.Buffer
	said := onLine{"rail0 WRITE", f.began}
	c.Stdout = io.MultiWriter(&both, &said)
	c.Stderr = c.Stdout
	f.here.In(func() { require.NoError(t, c.Start()) })
	err = c.Wait()
	if text, failed := os.ReadFile(file); failed == nil {
		r = &result.Result{}
		require.NoError(t, json.Unmarshal(text, r))
	}
	return r, both.String(), err
}

// TestStudyKVPeer: prefill nodes in one network namespace, decode nodes in another with another clock. The bytes go over the wire between
// them, by WRITE and by READ, and are compared. Nodes that are killed there disturb as those on this host do.
func TestStudyKVPeer(t *testing.T) {
	f := faraway(t, "doctor", 1, 1000)
	sent := f.here.Sent("rail0")
	r, log, err := f.study(t, "kv", "--param", "provider=tcp", "--model", "llama-70b-tp8")
	require.NoError(t, err, log)
	rows := r.Sections[0].Tables[0].Rows
	require.Len(t, rows, 3)
	for _, row := range rows {
		require.Equal(t, "0", row[8].String(), "failed")
		require.NotEqual(t, "0", row[9].String(), "compared")
		require.Less(t, *row[6].Value, 60e3, "ms: the difference of the clocks is taken out")
		require.Positive(t, *row[3].Value, "ms")
	}
	prompts := uint64(3 + 5 + 5) // of 64 tokens, at least: alone, by WRITE, by READ
	require.Greater(t, f.here.Sent("rail0")-sent, prompts*64*40960, "both ways move bytes from here to there")
	require.Contains(t, r.Setup, "prefill here and decode at "+f.addr)
	last := r.Checks[len(r.Checks)-1]
	require.Equal(t, "clocks", last.What, "%+v", r.Checks)

	r, log, err = f.study(t, "kv", "--param", "provider=tcp", "--chaos", "kill,restart,stop1,cut", "--prefill", "2", "--decode", "2")
	require.NoError(t, err, log)
	rows4 := rowsOf(r.Sections[0].Tables[0])
	require.Len(t, rows4, 4, "none, kill, restart, stop1")
	for _, row := range rows4 {
		for _, zero := range []string{campaign.ColWrong, campaign.ColOthers, campaign.ColAfter, campaign.ColWaiting} {
			require.Zero(t, *row[zero].Value, "%s: %+v", zero, row)
		}
	}
	require.Contains(t, log+fmt.Sprint(r.Sections), "cut")
	said, err := os.ReadFile(f.log)
	require.NoError(t, err)
	require.NotContains(t, string(said), "panic")
}

// TestStudyKVPeerBench: a peer that serves benchmarks alone is an error that says what to run there.
func TestStudyKVPeerBench(t *testing.T) {
	f := faraway(t, "bench", 1, 1000)
	_, log, err := f.study(t, "kv")
	require.Error(t, err)
	require.Contains(t, log, "decode-0: "+f.addr+" serves benchmarks alone: run gorail doctor --listen there")
}

// TestStudyRails: two rails between two hosts.
func TestStudyRails(t *testing.T) {
	f := faraway(t, "doctor", 2, 500)
	r, log, err := f.study(t, "rails")
	require.NoError(t, err, log)
	require.Empty(t, r.Failed)
	require.Contains(t, strings.Join(r.Findings, "\n"), "All 2 rails together (host memory): WRITE of 4 MiB")
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.What)
	}
	require.Subset(t, names, []string{"quiet", "engine", "rails", "peer-data"})
}

// TestRailDies: a rail is cut in the middle, not that of the commands. The numbers before it, and those over other rails, are kept; the others are named.
func TestRailDies(t *testing.T) {
	t.Setenv("GORAIL_PEER_TIMEOUT", "1s")
	t.Setenv("GORAIL_CONNECT_TIMEOUT", "1s")
	f := faraway(t, "doctor", 2, 400)
	f.began = func() { f.here.Cut("rail0") }
	r, log, err := f.study(t, "rails")
	require.ErrorContains(t, err, "exit status 1", log)
	require.NotEmpty(t, r.Failed)
	require.Contains(t, r.Failed[0], "rail0: WRITE")
	require.NotEmpty(t, r.Sections)
	require.Contains(t, strings.Join(r.Findings, "\n"), "All 2 rails")
}

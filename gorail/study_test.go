package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/study/lab"
	"gorail/gorail/study/page"
	"gorail/gorail/study/result"
	"gorail/test/skip"
	"gorail/test/testenv"
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
	r, err := page.Read(text)
	require.NoError(t, err)
	require.Empty(t, r.Ended)
	require.Empty(t, r.Failed)
	require.NotEmpty(t, r.Findings)
	require.NotEmpty(t, r.Sections)
	text, err = os.ReadFile(filepath.Join(dir, "a.html"))
	require.NoError(t, err)
	require.Contains(t, string(text), r.Sections[0].Title)
	return r, string(text)
}

func TestStudySmall(t *testing.T) {
	r, html := studied(t, "small")
	require.Contains(t, html, "<svg")
	var names []string
	for _, s := range r.Sections {
		names = append(names, s.Title)
	}
	require.Equal(t, []string{"Latency", "In flight", "Threads", "Agents"}, names)
	require.Contains(t, strings.Join(r.Findings, "\n"), "GORAIL tcp, one thread:")
}

func TestStudyRails(t *testing.T) {
	skip.UnlessRoot(t, "network namespaces")
	r, _ := studied(t, "rails", "--lab", "rails=2,rate=500mbit")
	require.Contains(t, strings.Join(r.Findings, "\n"), "All 2 rails together (host memory): WRITE of 4 MiB")
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.What)
	}
	require.Subset(t, names, []string{"quiet", "engine", "rails", "plain-tcp"})
}

// TestStudyTransports: two fabrics of one host; one program works, and one fails.
func TestStudyTransports(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"weights.py":    "import json, os, sys\njson.dump({'results': {'flat': {'seconds': 2.5, 'by': os.environ['GORAIL_PROVIDER']}}}, open(sys.argv[-1], 'w'))\n",
		"checkpoint.py": "raise SystemExit('no room')\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	r, _ := studied(t, "transports", "--examples", dir)
	text := strings.Join(r.Findings, "\n")
	require.Contains(t, text, "GORAIL shm beside tcp:")
	require.Contains(t, text, "GORAIL tcp beside plain TCP:")
	require.Contains(t, text, "of its rate for 4 MiB beside a load on every core")
	last := r.Sections[len(r.Sections)-1]
	require.Equal(t, "Training and serving", last.Title)
	require.Contains(t, last.Text, "checkpoint over tcp did not run: exit status 1: no room.")
	require.NotContains(t, last.Text, "Without NIXL's POSIX plugin")
	require.Len(t, last.Tables[0].Rows, 1)
	for i, want := range []string{"weights", "flat seconds", "2.50", "2.50"} {
		require.Equal(t, want, last.Tables[0].Rows[0][i].String())
	}
}

// TestStudyKV: a decode node is killed in the middle. Its requests fail, and those of the other node do not.
func TestStudyKV(t *testing.T) {
	r, _ := studied(t, "kv", "--chaos", "kill", "--time", "200ms")
	text := strings.Join(r.Findings, "\n")
	require.Regexp(t, `WRITE, whole: after decode-0 is killed, [0-9]+ requests fail, each known after .*; none of them for another node`, text)
	require.Regexp(t, `READ, layer by layer: after decode-0 is killed, [0-9]+ requests fail`, text)
	require.Len(t, r.Sections, 2)
}

// TestStudyFullDisk: the page finds no room on its disk. The result is kept, and its page can be written again.
func TestStudyFullDisk(t *testing.T) {
	env := needs(t)
	t.Setenv("TMPDIR", t.TempDir())
	out, log, err := gorail("study", "small", "--smallest", "--time", "1ms", "--wheel", env.WheelDir, "--plugins", env.PluginDir, "--output", "html=/dev/full")
	require.ErrorContains(t, err, "html is not written to /dev/full", log)
	require.ErrorContains(t, err, "no space left on device")
	require.ErrorContains(t, err, "gorail study show writes its page")
	require.Contains(t, out, "GORAIL, one thread")
	kept, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "gorail-study-*.json"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	out, _, err = gorail("study", "show", kept[0], "--output", "md=-")
	require.NoError(t, err)
	require.Contains(t, out, "GORAIL, one thread")
	out, _, err = gorail("study", "diff", kept[0], kept[0], "--output", "md=-")
	require.NoError(t, err)
	require.Contains(t, out, "0 numbers are better, 0 worse")
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
	r, err := page.Read(text)
	require.NoError(t, err)
	require.Equal(t, "interrupted", r.Ended)
	require.Len(t, r.Sections[0].Tables[0].Rows, 1, "alone")
}

// TestStudyErrors: wrong arguments are errors before anything is measured.
func TestStudyErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	empty := filepath.Join(dir, "empty.json")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct{ args, says string }{
		{"small --output png", "want json, md or html"},
		{"small --output html=" + dir + "/no/page.html", "no such file"},
		{"small --wheel /nowhere", "/nowhere"},
		{"diff /nowhere/a.json b.json", "no such file"},
		{"diff " + empty + " " + empty, "has not ended"},
		{"rails --lab rails=99", "from 1 to 8"},
		{"rails --lab rails=2 --peer 127.0.0.1:1", "connection refused"},
		{"small --peer no-such-host.invalid", "no-such-host.invalid"},
		{"rails --peer 127.0.0.1:1", "is gorail bench --listen or gorail doctor --listen running there?"},
		{"small --peer 127.0.0.1:1", "is gorail bench --listen or gorail doctor --listen running there?"},
		{"kv --model gpt", "no model"},
		{"kv --chaos fire", "want kill, cut or slow"},
		{"show go.mod", "no such file"},
	} {
		_, _, err := gorail(append([]string{"study"}, strings.Fields(c.args)...)...)
		require.ErrorContains(t, err, c.says, c.args)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "empty.json: what was not written to is removed")
}

// far is gorail doctor --listen in a network namespace of its own, on a host whose clock is days ahead.
type far struct {
	*lab.Lab
	env  testenv.Env
	addr string // host:port
	at   string // with the token
	log  string // the file with what the listener and its processes say
}

// aheadBy is how many seconds the clock of the far host is ahead.
const aheadBy = "500000"

// faraway makes two network namespaces and starts a listener in one of them, as command says: doctor or bench.
func faraway(t *testing.T, command string) *far {
	t.Helper()
	skip.UnlessRoot(t, "network namespaces")
	f := &far{env: needs(t), log: filepath.Join(t.TempDir(), "listener.log")}
	var err error
	if f.Lab, err = lab.New(lab.Spec{Rails: 1, Rates: []uint64{1e9}}); err != nil {
		skip.OrFail(t, err)
	}
	t.Cleanup(f.Close)
	args := []string{built(t, f.env), command, "--listen", lab.Addr(0) + ":0"}
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
	require.NoError(t, f.In(true, c.Start))
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
		if strings.HasPrefix(word, lab.Addr(0)+":") {
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
	c.Stdout, c.Stderr = &both, &both
	require.NoError(t, f.In(false, c.Start))
	err = c.Wait()
	if text, failed := os.ReadFile(file); failed == nil {
		r, failed = page.Read(text)
		require.NoError(t, failed)
	}
	return r, both.String(), err
}

// TestStudyKVPeer: prefill nodes in one network namespace, decode nodes in another with another clock. The bytes go over the wire between
// them, by WRITE and by READ, and are compared. A decode node that is killed or slow there disturbs as one on this host does.
func TestStudyKVPeer(t *testing.T) {
	f := faraway(t, "doctor")
	sent := f.Sent(0, false)
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
	require.Greater(t, f.Sent(0, false)-sent, prompts*64*40960, "both ways move bytes from here to there")
	require.Contains(t, r.Setup, "prefill here and decode at "+f.addr)
	last := r.Checks[len(r.Checks)-1]
	require.Equal(t, "clocks", last.What, "%+v", r.Checks)

	r, log, err = f.study(t, "kv", "--param", "provider=tcp", "--model", "llama-70b-tp8", "--chaos", "kill")
	require.NoError(t, err, log)
	text := strings.Join(r.Findings, "\n")
	require.Regexp(t, `WRITE, whole: after decode-0 is killed, [0-9]+ requests fail, each known after .*; none of them for another node`, text)
	require.Regexp(t, `READ, layer by layer: after decode-0 is killed, [0-9]+ requests fail`, text)

	r, log, err = f.study(t, "kv", "--param", "provider=tcp", "--model", "llama-70b-tp8", "--chaos", "slow")
	require.NoError(t, err, log)
	require.Contains(t, strings.Join(r.Findings, "\n"), "WRITE, whole: while decode-0's host is slow, no request fails")

	_, log, err = f.study(t, "kv", "--chaos", "cut")
	require.Error(t, err)
	require.Contains(t, log, "does not touch interfaces of real hosts")
	said, err := os.ReadFile(f.log)
	require.NoError(t, err)
	require.NotContains(t, string(said), "panic")
}

// TestStudyKVPeerBench: a peer that serves benchmarks alone is an error that says what to run there.
func TestStudyKVPeerBench(t *testing.T) {
	f := faraway(t, "bench")
	_, log, err := f.study(t, "kv")
	require.Error(t, err)
	require.Contains(t, log, "decode-0: "+f.addr+" serves benchmarks alone: run gorail doctor --listen there")
}

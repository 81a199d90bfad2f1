package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// watchedPair is two NIXL agents in two processes, whose engines the tool finds in a folder.
type watchedPair struct {
	alice, bob  *worker.Agent
	here, there *worker.Buf
	folder      string
}

const watchedLimit = 20 * time.Second

func watchPair(t *testing.T, env testenv.Env) (p watchedPair) {
	t.Helper()
	p.folder = t.TempDir()
	start := func(name string) *worker.Agent {
		w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"GORAIL_PROVIDER=tcp", "GORAIL_DEVICES=lo", "GORAIL_STATS_SOCKET=" + p.folder}})
		return w.Agent(worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true})
	}
	p.alice, p.bob = start("alice"), start("bob")
	p.bob.Polling(true)
	p.here, p.there = p.alice.Buffer(1<<20, 1), p.bob.Buffer(1<<20, 2)
	p.alice.Learn(p.bob)
	return p
}

func (p *watchedPair) xfer(op nixlapi.Op, local, remote worker.Side) *worker.Xfer {
	return p.alice.Xfer(worker.XferSpec{Op: op, Local: local, Remote: remote, Peer: "bob"})
}

// scraper starts gorail metrics, and returns a function that scrapes it.
func scraper(t *testing.T, env testenv.Env, folder string) func() string {
	t.Helper()
	c := exec.Command(built(t, env), "metrics", "--listen", "127.0.0.1:0", "--socket", folder)
	log, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
		require.NoError(t, c.Wait())
	})
	lines := bufio.NewReader(log)
	first, err := lines.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = lines.WriteTo(os.Stderr) }()
	url := regexp.MustCompile(`http://\S+/metrics`).FindString(first)
	require.NotEmpty(t, url, first)
	return func() string {
		r, err := http.Get(url)
		require.NoError(t, err)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode, "%s", body)
		return string(body)
	}
}

// value is the value of an agent's series. It must be there once.
func value(t *testing.T, page, name, agent string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`\{agent="`+agent+`",[^}]*\} (\S+)$`).FindAllStringSubmatch(page, -1)
	require.Len(t, found, 1, "%s of %s:\n%s", name, agent, page)
	v, err := strconv.ParseFloat(found[0][1], 64)
	require.NoError(t, err)
	return v
}

// TestMetricsOfAgents: two NIXL agents move a known number of bytes, and a scrape has exactly these.
func TestMetricsOfAgents(t *testing.T) {
	env := needs(t)
	p := watchPair(t, env)
	scrape := scraper(t, env, p.folder)
	const block, writes, reads = 768 << 10, 5, 3
	w := p.xfer(nixlapi.Write, p.here.Span(0, block), p.there.Span(0, block))
	for range writes {
		w.Do(watchedLimit)
	}
	require.Negative(t, p.there.Diff(0, block, 1, 0), "the bytes")
	page := scrape()
	require.Equal(t, float64(writes*block), value(t, page, "gorail_rail_written_bytes_total", "alice"))
	require.Zero(t, value(t, page, "gorail_rail_read_bytes_total", "alice"))
	r := p.xfer(nixlapi.Read, p.here.Span(0, block), p.there.Span(0, block))
	for range reads {
		r.Do(watchedLimit)
	}
	page = scrape()
	require.Equal(t, float64(writes*block), value(t, page, "gorail_rail_written_bytes_total", "alice"))
	require.Equal(t, float64(reads*block), value(t, page, "gorail_rail_read_bytes_total", "alice"))
	require.Equal(t, float64(writes+reads), value(t, page, "gorail_transfers_total", "alice"))
	for _, name := range []string{"gorail_rail_written_bytes_total", "gorail_rail_read_bytes_total", "gorail_transfers_total"} {
		require.Zero(t, value(t, page, name, "bob"), name)
	}
	for _, agent := range []string{"alice", "bob"} {
		require.Equal(t, 1.0, value(t, page, "gorail_engine_up", agent))
	}
	require.Regexp(t, fmt.Sprintf(`gorail_engine_up\{agent="alice",[^}]*pid="%d"\} 1`, p.alice.Pid()), page)
}

// bytesOf reads a rate of top: "257MB".
func bytesOf(t *testing.T, text string) float64 {
	t.Helper()
	m := regexp.MustCompile(`^([0-9.]+)(B|[kMGT]B)$`).FindStringSubmatch(text)
	require.NotNil(t, m, "%q is no size", text)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return v * map[string]float64{"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[m[2]]
}

// TestTopOfAgents: an agent writes all the time. top --once shows its rate and no READ, and no bytes of the
// target's own, but those that alice says. The rate times the
// interval is at most what the counters grew by, from before top to after it.
func TestTopOfAgents(t *testing.T) {
	env := needs(t)
	p := watchPair(t, env)
	scrape := scraper(t, env, p.folder)
	x := p.xfer(nixlapi.Write, p.here.All(), p.there.All())
	const past = 3000 // what came before must not count
	require.Equal(t, past, x.Loop(worker.LoopArgs{N: past, Timeout: watchedLimit}).Done)
	before := scrape()
	require.Equal(t, float64(past<<20), value(t, before, "gorail_rail_written_bytes_total", "alice"))
	const interval = 300 * time.Millisecond
	loop := make(chan worker.LoopResult, 1)
	future := x.LoopAsync(worker.LoopArgs{N: 1 << 30, Timeout: 2 * time.Minute})
	go func() { r, _ := future.Result(); loop <- r }()
	require.Eventually(t, func() bool {
		return value(t, scrape(), "gorail_transfers_total", "alice") > value(t, before, "gorail_transfers_total", "alice")
	}, watchedLimit, time.Millisecond)
	out, err := exec.Command(built(t, env), "top", "--once", "--socket", p.folder, "--interval", interval.String()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	after := scrape()
	rows := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 6 && (f[0] == "alice" || f[0] == "bob") && rows[f[0]] == nil { // transfers in flight come below
			rows[f[0]] = f
		}
	}
	require.Len(t, rows, 2, "%s", out)
	// AGENT, PROCESS (name and number), WRITE/s, READ/s
	require.Equal(t, strconv.Itoa(p.alice.Pid()), rows["alice"][2])
	rate := bytesOf(t, rows["alice"][3])
	grown := value(t, after, "gorail_rail_written_bytes_total", "alice") - value(t, before, "gorail_rail_written_bytes_total", "alice")
	require.Positive(t, rate, "%s", out)
	const rounding = 1.06 // "1.0GB"
	require.LessOrEqual(t, rate*interval.Seconds(), grown*rounding, "%s", out)
	require.Equal(t, "0B", rows["alice"][4], "%s", out)
	require.Equal(t, []string{"0B", "0B"}, rows["bob"][3:5], "%s", out)
	require.Contains(t, string(out), "tcp/lo")
	byPeers := regexp.MustCompile(`(?s)bob .*by peers +W (\S+) R 0B, as 1 peer says`)
	require.Eventually(t, func() bool { // alice says so in its pings
		out, err = exec.Command(built(t, env), "top", "--once", "--socket", p.folder, "--interval", interval.String()).CombinedOutput()
		m := byPeers.FindSubmatch(out)
		return err == nil && m != nil && bytesOf(t, string(m[1])) > 0
	}, watchedLimit, 10*time.Millisecond)
	p.alice.Kill()
	<-loop
}

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// params sets options of the backend, by name and value.
func params(kv ...string) option {
	return func(c *worker.AgentConfig) {
		c.Params = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			c.Params[kv[i]] = kv[i+1]
		}
	}
}

// ours skips a test of GORAIL's own behaviour for other backends.
func ours(t testing.TB) testenv.Env {
	t.Helper()
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skipf("a test of GORAIL, not of %s", env.Backend)
	}
	return env
}

// logged are the lines that a worker printed, without slog's backslashes before quotes.
func logged(w *worker.Worker) []string {
	return strings.Split(strings.ReplaceAll(w.Output(), `\"`, `"`), "\n")
}

// says waits for a printed line of the worker that has all the parts, and returns the line. Without such a line the
// test fails, and runs on to its other checks.
func says(t *testing.T, w *worker.Worker, parts ...string) (line string) {
	t.Helper()
	assert.True(t, worker.Eventually(lost, func() bool { // output and answers use different pipes
		lines := logged(w)
		i := slices.IndexFunc(lines, func(line string) bool { return holds(line, parts) })
		if i >= 0 {
			line = lines[i]
		}
		return i >= 0
	}), "no line has all of %q:\n%s", parts, w.Output())
	return line
}

func holds(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}

// refused requires that createBackend fails, and within the time lost.
func refused(t *testing.T, w *worker.Worker, env testenv.Env, name string, opts ...option) {
	t.Helper()
	c := worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true}
	for _, o := range opts {
		o(&c)
	}
	began := time.Now()
	_, err := w.TryAgent(c)
	require.Error(t, err, "%v\n%s", c.Params, w.Output())
	require.Less(t, time.Since(began), lost)
}

// works transfers bytes by a new backend of a process, often after another backend has failed there.
func works(t *testing.T, w *worker.Worker, env testenv.Env, opts ...option) {
	t.Helper()
	a := agent(w, env, "survivor", opts...)
	src, dst := a.Buffer(1<<20, seedA), a.Buffer(1<<20, seedB)
	a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: src.All(), Remote: dst.All(), Peer: a.Name, Notif: []byte("n")}).Do(limit)
	require.Len(t, a.WaitNotifs(1, limit), 1)
	dst.Want(seedA)
	require.NoError(t, a.Close())
	src.Free()
	dst.Free()
}

// TestBadOptions: the error of a bad value names the option, the value and the allowed values. Another backend of the
// process still works.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_RAIL_TIMEOUT=a while"}})
	refused(t, w, env, "environment")
	says(t, w, `rail_timeout="a while"`, "from GORAIL_RAIL_TIMEOUT", "not a duration", "from 10ms to 1h", "rail_timeout=500ms")
	for _, c := range []struct{ name, value, wrong, allowed string }{
		{"xfer_timeout", "5parsecs", "not a duration", "from 100ms to 1h"},
		{"peer_timeout", "-5s", "out of range", "from 100ms to 1h"},
		{"connect_timeout", "2h", "out of range", "from 100ms to 1h"},
		{"notif_queue", "1MB", "not a size", "from 64KiB to 16GiB"},
		{"notif_memory", "-4096", "not a size", "from 1MiB to 64GiB"},
		{"stage_size", "1", "out of range", "from 1MiB to 4GiB"},
		{"staging_memory", "2MiB", "is less than two sets of stage_size=64MiB", "staging_memory=128MiB or more"},
		{"max_rails", "33", "out of range", "from 1 to 32"},
		{"max_rails", "two", "not a whole number", "from 1 to 32"},
		{"log", "loud", "unknown word", "error, warn, info or debug"},
		{"control_port", "65536", "not a port", "7000-7100"},
		{"provider", "auto,tcp", "auto stands alone", "libfabric provider names"},
		{"devices", "eth[", "glob", "eth0,!lo"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			// The good rail_timeout overrides the bad value in the environment.
			refused(t, w, env, "alice", params(c.name, c.value, "rail_timeout", "600ms"))
			says(t, w, "level=ERROR", "bad option", c.name+"=", c.value, c.wrong, c.allowed)
		})
	}
	works(t, w, env, params("rail_timeout", "600ms"))
}

// TestTransferTimeout: xfer_timeout ends a transfer without progress, and the log names peer, rails and bytes left.
func TestTransferTimeout(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t, params("xfer_timeout", "700ms", "peer_timeout", "3s", "cancel_timeout", "500ms"))
	a, b := p.buffers(16 << 20)
	la := worker.Span(0, a.Size)
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		p.tgt.Stop()
		began := time.Now()
		require.False(t, x.Post().Failed())
		s := x.Wait(limit)
		took := time.Since(began)
		p.tgt.Cont()
		require.True(t, s.Failed(), "%s after %v\n%s", s, took, p.ini.Output())
		if op == nixlapi.Read {
			require.Less(t, took, 3*time.Second)
		} else { // bytes of a WRITE may be in the peer's socket: the engine waits for peer_timeout, too
			require.Less(t, took, 8*time.Second)
		}
		says(t, p.ini.Worker, "level=ERROR", "no progress for 700ms", "option xfer_timeout", `peer "bob"`, "rails [", "/", " of 16777216 bytes left")
		require.False(t, toldLost(p.ini), "a slow peer was reported as lost")
		a.Fill(seedA)
		b.Fill(seedB)
		x.Do(limit)
		want(op, a, b, la, la)
		require.NotEmpty(t, p.tgt.WaitNotifs(1, limit))
		require.NoError(t, x.Release())
	})
}

// TestLogFile: log lines go to the file of log_file, which has the process's number in its name, as JSON with log_format, and errors have their code. A file that
// cannot be opened is an error of createBackend.
func TestLogFile(t *testing.T) {
	t.Parallel()
	env := ours(t)
	dir := t.TempDir()
	w := process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG_FILE=" + filepath.Join(dir, "gorail-%p.log"), "GORAIL_LOG_FORMAT=json", "GORAIL_LOG=info"}})
	file := filepath.Join(dir, fmt.Sprintf("gorail-%d.log", w.Pid()))
	a := agent(w, env, "a")
	require.Error(t, a.GenNotif("nobody", []byte("n")))
	_, err := w.TryAgent(worker.AgentConfig{Name: "b", Backend: env.Backend, Params: map[string]string{"xfer_timeout": "soon"}})
	require.Error(t, err)
	_, err = w.TryAgent(worker.AgentConfig{Name: "c", Backend: env.Backend, Params: map[string]string{"log_file": filepath.Join(file, "none")}})
	require.Error(t, err)
	require.NoError(t, a.Close())

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	codes, messages := map[string]string{}, map[string]map[string]any{}
	for line := range strings.Lines(string(text)) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
		require.Equal(t, "GORAIL", fields["backend"])
		message, _ := fields["msg"].(string)
		messages[message] = fields
		if code, _ := fields["code"].(string); code != "" {
			codes[code] = message
		}
	}
	require.Contains(t, messages, "rails")
	require.Equal(t, "a", messages["rails"]["agent"])
	require.NotEmpty(t, messages["rails"]["version"])
	require.Contains(t, codes["GR-1004"], "xfer_timeout")
	require.Contains(t, codes["GR-1005"], "log_file=")
}

// orders are the orders in which an ordinary life ends.
var orders = map[string]func(t *testing.T, p *pairOf){
	"initiator_first": func(t *testing.T, p *pairOf) { endBoth(t, p.ini, p.tgt) },
	"target_first":    func(t *testing.T, p *pairOf) { endBoth(t, p.tgt, p.ini) },
	"removed_first": func(t *testing.T, p *pairOf) {
		require.NoError(t, p.ini.Invalidate("bob"))
		require.NoError(t, p.tgt.Invalidate("alice"))
		endBoth(t, p.tgt, p.ini)
	},
	"together": func(t *testing.T, p *pairOf) {
		done := make(chan error)
		go func() { done <- p.ini.Close() }()
		err := p.tgt.Close()
		require.NoError(t, <-done)
		require.NoError(t, err)
	},
	"processes_exit": func(t *testing.T, p *pairOf) {
		exit(t, p.tgt, p.ini)
	},
}

// ordersInShort are the lives of the short form.
var ordersInShort = map[string]bool{"tcp/initiator_first": true, "tcp/together": true, "tcp_threads/target_first": true, "memory/removed_first": true, "defaults/processes_exit": true}

func endBoth(t *testing.T, all ...*worker.Agent) {
	for _, a := range all {
		require.NoError(t, a.Close())
	}
}

// TestOrdinaryLifeIsQuiet: two agents that register, transfer both ways, notify, deregister, remove each other and end, in each order, leave
// no line of ours at log=warn.
func TestOrdinaryLifeIsQuiet(t *testing.T) {
	t.Parallel()
	ours(t)
	for way, set := range map[string][]string{
		"tcp":         {"provider", "tcp"},
		"tcp_threads": {"provider", "tcp", "tcp_threads", "4"},
		"memory":      {"provider", "sm"},
		"defaults":    nil,
	} {
		for order, end := range orders {
			if testing.Short() && !ordersInShort[way+"/"+order] {
				continue // each way and each order has one life
			}
			t.Run(fmt.Sprintf("%s/%s", way, order), func(t *testing.T) {
				t.Parallel()
				said := slices.DeleteFunc(strings.Split(lifeOf(t, params(set...), order, end), "\n"), func(line string) bool {
					return strings.Contains(line, "waited=500ms") // on a starved host, where both end at once: the line is true (TestCloseDelivers)
				})
				require.NotContains(t, strings.Join(said, "\n"), "backend=GORAIL")
			})
		}
	}
}

// lifeOf is the life of two agents in two processes. It returns what both have written to standard error.
func lifeOf(t *testing.T, set option, order string, end func(t *testing.T, p *pairOf)) (said string) {
	env := testenv.Need(t)
	begin := func(name string) *worker.Agent {
		return agent(process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=warn"}}), env, name, set)
	}
	p := &pairOf{env: env, ini: begin("alice"), tgt: begin("bob")}
	for range 2 { // the second life of the same agents is with new memory
		live(t, p)
	}
	live(t, &pairOf{env: env, ini: p.tgt, tgt: p.ini})
	end(t, p)
	for _, a := range []*worker.Agent{p.ini, p.tgt} {
		if order != "processes_exit" {
			require.NoError(t, a.Exit())
		}
		said += a.Output()
	}
	return said
}

// live is what agents do with each other, up to the deregistration of both buffers.
func live(t *testing.T, p *pairOf) {
	a, b := p.buffers(1 << 20)
	for i, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: p.tgt.Name, Notif: worker.Seq("n", i)})
		for range 3 {
			x.Do(limit)
		}
		require.NoError(t, x.Release())
	}
	require.NoError(t, p.ini.GenNotif(p.tgt.Name, []byte("alone")))
	require.Len(t, p.tgt.WaitNotifs(7, limit), 7)
	require.NoError(t, p.tgt.Deregister(b.All()))
	require.NoError(t, p.ini.Deregister(a.All()))
}

// fullPipe makes a pipe that blocks a writer until it is read. It returns the number of empty lines in the pipe.
func fullPipe(t *testing.T) (r, w *os.File, lines int) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	fd := int(w.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for b := []byte{'\n'}; ; lines++ {
		if _, err := unix.Write(fd, b); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
	}
	require.NoError(t, unix.SetNonblock(fd, false))
	return r, w, lines
}

// TestStuckLog: nobody reads the standard error of a process. New peers, transfers and the end of the engine are not
// delayed. The log lines arrive when it is read.
func TestStuckLog(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			env := ours(t)
			r, w, lines := fullPipe(t)
			p := &pairOf{env: env, ini: agent(process(t, worker.Options{Env: env, Stderr: w, Setenv: []string{"GORAIL_LOG=" + level}}), env, "alice"),
				tgt: start(t, "bob")}
			require.NoError(t, w.Close())
			p.tgt.Polling(true)
			const size = 64 << 10
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				for i := range 20 {
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte(fmt.Sprint(op, i))})
					x.Do(limit)
					require.NoError(t, x.Release())
				}
			})
			p.tgt.WaitNotifs(40, limit)
			for i := range 3 {
				c := start(t, fmt.Sprint("carol", i))
				c.Polling(true)
				p.ini.Learn(c)
				require.NoError(t, p.ini.GenNotif(fmt.Sprint("carol", i), []byte("hello")))
				c.WaitNotifs(1, limit)
			}
			begun := time.Now()
			require.NoError(t, p.ini.Close())
			require.Less(t, time.Since(begun), testenv.Patient(5*time.Second))

			for scan := bufio.NewScanner(r); ; lines-- {
				require.True(t, scan.Scan(), "the output ends")
				if line := scan.Text(); line != "" {
					require.Zero(t, lines)
					require.Contains(t, line, "backend=GORAIL agent=alice")
					break
				}
			}
		})
	}
}

// snapshot reads an engine's stats_file.
func snapshot(t testing.TB, file string) (s stats.Snapshot) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}

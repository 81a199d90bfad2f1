package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

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

// TestNoLibfabric: the error names the path of libfabric, the package to install and the option to set.
func TestNoLibfabric(t *testing.T) {
	t.Parallel()
	const path = "/nonexistent/libfabric.so.1"
	env := ours(t)
	w := process(t, worker.Options{Env: env})
	refused(t, w, env, "alice", params("libfabric_path", path, "provider", "efa"))
	says(t, w, "level=ERROR", path, "No such file", "libfabric1", "option libfabric_path")
	works(t, w, env)
}

// TestNothingToUse: the error names the missing device or provider, and the present ones.
func TestNothingToUse(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env})
	for _, c := range []struct {
		option, value string
		says          []string
	}{
		{"devices", "nosuch*", []string{"no device matches option devices=nosuch*", "there are: ", "lo"}},
		{"devices", "!*", []string{"no device matches option devices=!*", "there are: ", "lo"}},
		{"tcp_congestion", "nosuch", []string{"option tcp_congestion=nosuch", "this kernel has ", "this process may use ", "reno", "tcp_nosuch"}},
		{"provider", "warp", []string{"option provider=warp", "libfabric ", "providers: ", "tcp"}},
		{"provider", "warp,drive", []string{"option provider=warp,drive", `"warp"`, `"drive"`, "providers: ", "tcp"}},
	} {
		refused(t, w, env, "alice", params(c.option, c.value))
		says(t, w, append(c.says, "level=ERROR", "createBackend")...)
	}
	works(t, w, env)
}

// TestStatsFileNowhere: a stats_file that cannot be written is an error of createBackend, which names option and file.
func TestStatsFileNowhere(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env})
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for file, why := range map[string]string{"/nonexistent/stats.json": "folder /nonexistent: no such file or directory", fifo: "is a named pipe"} {
		refused(t, w, env, "alice", params("stats_file", file))
		says(t, w, "level=ERROR", "option stats_file="+file, why)
	}
	works(t, w, env, params("stats_file", filepath.Join(t.TempDir(), "stats.json")))
}

// TestStatsToStuckOutput: nobody reads the standard error to which the counters go. The engine ends within seconds.
func TestStatsToStuckOutput(t *testing.T) {
	t.Parallel()
	env := ours(t)
	_, stuck, _ := fullPipe(t)
	w := process(t, worker.Options{Env: env, Stderr: stuck})
	a := agent(w, env, "alice", params("stats_file", "/dev/stderr"))
	begun := time.Now()
	require.NoError(t, a.Close())
	require.Less(t, time.Since(begun), testenv.Patient(5*time.Second))
}

// TestStatsFileGone: the folder of stats_file is gone when the engine ends. The engine ends without an error, and the log
// names the file.
func TestStatsFileGone(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env})
	dir := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(dir, 0o755))
	a := agent(w, env, "survivor", params("stats_file", filepath.Join(dir, "stats.json")))
	require.NoError(t, os.Remove(dir))
	require.NoError(t, a.Close())
	says(t, w, "stats_file", dir, "no such file or directory")
	works(t, w, env)
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

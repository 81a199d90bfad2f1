package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
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

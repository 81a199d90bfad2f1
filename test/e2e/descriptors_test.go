package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// enough is a descriptor limit that no test reaches.
const enough = 4096

// limitFDs sets a worker's RLIMIT_NOFILE.
func limitFDs(t *testing.T, w *worker.Worker, n int) {
	t.Helper()
	require.NoError(t, unix.Prlimit(w.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: enough}, nil))
}

// TestNoDescriptors: a backend runs out of descriptors, at each point of its creation. The log names the limit and the
// command that raises it, and no descriptor stays open.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	env := ours(t)
	for _, c := range []struct {
		name string
		prep func(w *worker.Worker)
	}{
		{"first", func(w *worker.Worker) { refused(t, w, env, "alice", params("log", "loud")) }}, // loads the plugin only
		{"later", func(w *worker.Worker) { works(t, w, env) }},                                   // loads everything
	} {
		t.Run(c.name, func(t *testing.T) {
			w := process(t, worker.Options{Env: env})
			c.prep(w)
			open := w.Stats().FDs
			starve(t, w, env, open)
			works(t, w, env)
			require.True(t, worker.Eventually(lost, func() bool { return w.Stats().FDs <= open+8 }), "%d open descriptors, %d before", w.Stats().FDs, open)
		})
	}
}

// starve gives a backend one descriptor more in each round, until createBackend succeeds.
func starve(t *testing.T, w *worker.Worker, env testenv.Env, open int) {
	t.Helper()
	var poor []string
	for room := range 64 {
		limitFDs(t, w, open+room)
		w.Forget()
		name := string(worker.Seq("room-", room))
		a, err := w.TryAgent(worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true})
		limitFDs(t, w, enough)
		if err == nil {
			require.NoError(t, a.Close())
			require.Positive(t, room)
			require.Empty(t, poor, "of %d refusals for want of descriptors, these do not name the limit:\n%s", room, strings.Join(poor, "\n"))
			return
		}
		if line := says(t, w, "level=ERROR", "createBackend"); !strings.Contains(line, "ulimit -n") {
			poor = append(poor, name+": "+line)
		}
	}
	require.Fail(t, "createBackend fails with 63 free descriptors")
}

// TestNoDescriptorsToConnect: one side has no descriptor left for a connection. Its transfer ends in time, its log names
// the limit, and it connects when it has descriptors again.
func TestNoDescriptorsToConnect(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, end := range []string{"initiator", "target"} {
		t.Run(end, func(t *testing.T) {
			p := pair(t, params("connect_timeout", "200ms", "xfer_timeout", "300ms", "cancel_timeout", "100ms"))
			a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
			p.reachSoon(t, a, b) // opens every descriptor that an engine opens only once
			poor := map[string]*worker.Agent{"initiator": p.ini, "target": p.tgt}[end]
			forget(t, p.ini, "bob")
			open, late := settled(t, poor.Worker), 0
			for room := 0; room < 16; room++ {
				limitFDs(t, poor.Worker, open+room)
				p.ini.Learn(p.tgt)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
				s := x.Try(lost)
				limitFDs(t, poor.Worker, enough)
				require.NotEqual(t, nixlapi.InProgress, s, "%d descriptors left\n%s\n%s", room, p.ini.Output(), p.tgt.Output())
				limitLogged := func() bool { return strings.Contains(strings.Join(logged(poor.Worker), "\n"), "ulimit -n") }
				if room == 0 && late < 10 && !(s.Failed() && worker.Eventually(time.Second, limitLogged)) { // a descriptor of an earlier round was closed late and left room
					late++
					room--
				} else if room == 0 {
					require.True(t, s.Failed())
					says(t, poor.Worker, "agent="+poor.Name, "ulimit -n")
				}
				require.NoError(t, x.Release())
				p.reachSoon(t, a, b)
				forget(t, p.ini, "bob")
				open = settled(t, poor.Worker)
			}
		})
	}
}

// reachSoon is reach for short timeouts: on a busy machine some of its transfers may fail, but not all.
func (p *pairOf) reachSoon(t *testing.T, a, b *worker.Buf) {
	t.Helper()
	b.Fill(seedB)
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	require.True(t, worker.Eventually(limit, func() bool {
		s := x.Try(lost)
		return s == nixlapi.Success
	}), "%s\n%s", p.ini.Output(), p.tgt.Output())
	b.Want(seedA)
	require.NoError(t, x.Release())
}

// settled waits until the number of open descriptors does not change, and returns it.
func settled(t *testing.T, w *worker.Worker) int {
	t.Helper()
	n := w.Stats().FDs
	require.True(t, worker.Eventually(lost, func() bool {
		was := n
		n = w.Stats().FDs
		return n == was
	}))
	return n
}

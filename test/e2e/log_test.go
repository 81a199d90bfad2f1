package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// params are options of the backend by name and value.
func params(kv ...string) option {
	return func(c *worker.AgentConfig) {
		c.Params = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			c.Params[kv[i]] = kv[i+1]
		}
	}
}

// ours skips what only GORAIL promises.
func ours(t testing.TB) testenv.Env {
	t.Helper()
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skipf("about GORAIL's own messages and options, not those of %s", env.Backend)
	}
	return env
}

// logged is what a worker printed, as a reader sees it: slog puts quotes in quotes.
func logged(w *worker.Worker) []string {
	return strings.Split(strings.ReplaceAll(w.Output(), `\"`, `"`), "\n")
}

// says waits for a line of what the worker printed that holds all the parts, and returns it. Without one the test has
// failed and goes on: whether anything was lost is another question.
func says(t *testing.T, w *worker.Worker, parts ...string) (line string) {
	t.Helper()
	assert.True(t, eventually(lost, func() bool { // the output comes by another pipe than the answers
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

// refused tries an agent whose backend cannot be created, and soon says so.
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

// works moves bytes in a process to which something happened, over a new backend.
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

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

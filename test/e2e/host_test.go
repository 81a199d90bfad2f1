package e2e

import (
	"testing"

	"gorail/test/lab"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// host is a network namespace that stands for a machine.
type host struct{ *lab.Host }

func newHost(t testing.TB) *host {
	t.Helper()
	return &host{lab.New(t)}
}

// hosts are two hosts with wires of these names.
func hosts(t testing.TB, network byte, names ...string) (a, b *host) {
	t.Helper()
	ha, hb := lab.Two(t, network, names...)
	return &host{ha}, &host{hb}
}

// start makes a process with one agent on this host. The process sees only this host's interfaces in /sys.
func (h *host) start(name string, opts ...option) *worker.Agent {
	h.T.Helper()
	return h.startWith(nil, name, opts...)
}

// startWith is start with environment variables for the process.
func (h *host) startWith(setenv []string, name string, opts ...option) *worker.Agent {
	h.T.Helper()
	env := testenv.Need(h.T)
	return agent(h.worker(worker.Options{Env: env, Setenv: setenv}), env, name, opts...)
}

// worker makes a process on this host.
func (h *host) worker(o worker.Options) (w *worker.Worker) {
	h.T.Helper()
	h.In(func() { w = worker.Start(h.T, o) })
	return w
}

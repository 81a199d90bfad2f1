// Package e2e drives real NIXL agents, mostly in two processes, with any backend, and compares the bytes of both sides.
// The variables in package testenv choose the plugin and the wheel. The workers inherit UCX_* and GORAIL_* variables.
package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/history/actor"
	"gorail/test/history/mover"
	"gorail/test/testenv"
	"gorail/test/walls"
	"gorail/test/worker"
)

var (
	limit = testenv.Patient(30 * time.Second)  // for steps of milliseconds
	long  = testenv.Patient(120 * time.Second) // for gigabytes, or 100,000 operations
)

const (
	seedA = 0xa // the initiator's bytes
	seedB = 0xb // the target's bytes
	seedC = 0xc // the sender's bytes of a later transfer
)

func TestMain(m *testing.M) {
	walls.MaybeEnter()
	worker.NewGPU = newApplication
	maybeLimit()
	maybeAttack()
	worker.MaybeRun()
	actor.MaybeRun()
	mover.MaybeRun()
	if os.Getenv("GORAIL_PROVIDER") == "" && os.Getenv(envWalls) == "" {
		os.Setenv("GORAIL_PROVIDER", "tcp") // the default is shared memory on one host: GORAIL_PROVIDER=sm
	}
	os.Exit(m.Run())
}

// rounds is short with -short, else full.
func rounds(short, full int) int {
	if testing.Short() {
		return short
	}
	return full
}

// pairOf is an initiator and a target that polls, in two processes.
type pairOf struct {
	env testenv.Env
	ini *worker.Agent
	tgt *worker.Agent
}

// exit lets processes end normally.
func exit(t testing.TB, processes ...interface{ Exit() error }) {
	t.Helper()
	for _, p := range processes {
		require.NoError(t, p.Exit())
	}
}

type option func(*worker.AgentConfig)

func progress(on bool) option { return func(c *worker.AgentConfig) { c.ProgThread = on } }

// start makes one process with one agent.
func start(t testing.TB, name string, opts ...option) *worker.Agent {
	t.Helper()
	env := testenv.Need(t)
	return agent(process(t, worker.Options{Env: env}), env, name, opts...)
}

// process starts a process: a pod of its own with envWalls, unless it has namespaces or a user already.
func process(t testing.TB, o worker.Options) *worker.Worker {
	t.Helper()
	if p := podOf(t); p != nil && o.Attr == nil {
		return p.worker(o)
	}
	return worker.Start(t, o)
}

// agent makes one more agent in a process.
func agent(w *worker.Worker, env testenv.Env, name string, opts ...option) *worker.Agent {
	c := worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true}
	for _, o := range opts {
		o(&c)
	}
	return w.Agent(c)
}

// pair makes two processes. The target polls for notifications all the time.
func pair(t testing.TB, opts ...option) *pairOf {
	t.Helper()
	p := quietPair(t, opts...)
	p.tgt.Polling(true)
	return p
}

// quietPair is pair with a target that does not poll.
func quietPair(t testing.TB, opts ...option) *pairOf {
	t.Helper()
	return &pairOf{env: testenv.Need(t), ini: start(t, "alice", opts...), tgt: start(t, "bob", opts...)}
}

// buffers registers size bytes on both sides, and the initiator loads the target's metadata.
func (p *pairOf) buffers(size uint64) (a, b *worker.Buf) {
	a, b = p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
	p.ini.Learn(p.tgt)
	return a, b
}

// eachProgress runs a scenario with NIXL's progress flag on and off. GORAIL does not read the flag: the short form has it on.
func eachProgress(t *testing.T, f func(t *testing.T, o option)) {
	for _, on := range []bool{true, false}[:rounds(1, 2)] {
		t.Run(fmt.Sprintf("progress=%v", on), func(t *testing.T) { f(t, progress(on)) })
	}
}

// eachOp runs a scenario for both directions.
func eachOp(t *testing.T, f func(t *testing.T, op nixlapi.Op)) {
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		t.Run(op.String(), func(t *testing.T) { f(t, op) })
	}
}

// halfShort is eachOp with the given operation alone in the short form.
func halfShort(t *testing.T, short nixlapi.Op, f func(t *testing.T, op nixlapi.Op)) {
	if testing.Short() {
		t.Run(short.String(), func(t *testing.T) { f(t, short) })
		return
	}
	eachOp(t, f)
}

// want compares both buffers with the contents that a transfer between the blocks la of a and lb of b must leave.
func want(op nixlapi.Op, a, b *worker.Buf, la, lb worker.Layout) {
	if op == nixlapi.Write {
		b.WantBlocks(seedB, lb, seedA, la)
		a.Want(seedA)
		return
	}
	a.WantBlocks(seedA, la, seedB, lb)
	b.Want(seedB)
}

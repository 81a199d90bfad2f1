package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestIdlePeers: a peer of this host takes two descriptors, its process two more, and none stays when it is removed or dies.
func TestIdlePeers(t *testing.T) {
	t.Parallel()
	const n, procs = 20, 4
	o := worker.Options{Env: testenv.Need(t), Setenv: []string{"GORAIL_PROVIDER=sm"}}
	hub := process(t, o)
	h := agent(hub, o.Env, "hub")
	add := func(w *worker.Worker, name string) *worker.Agent {
		a := agent(w, o.Env, name)
		h.Learn(a)
		require.NoError(t, h.GenNotif(a.Name, []byte("hello")))
		require.Len(t, a.WaitNotifs(1, limit), 1)
		return a
	}
	most := func(fds int, what string) {
		t.Helper()
		require.True(t, worker.Eventually(limit, func() bool { return hub.Stats().FDs <= fds }), "%s: %d descriptors instead of %d", what, hub.Stats().FDs, fds)
	}
	first := process(t, o)
	add(first, "first") // opens what an engine opens once
	before := hub.Stats().FDs
	var leaves []*worker.Agent
	for i := range n {
		leaves = append(leaves, add(first, fmt.Sprint("leaf", i)))
	}
	most(before+2*n, "peers of one process")
	for _, a := range leaves[1:] {
		require.NoError(t, h.Invalidate(a.Name))
	}
	most(before+2, "all but one removed")
	var others []*worker.Worker
	for i := range procs {
		others = append(others, process(t, o))
		add(others[i], fmt.Sprint("other", i))
	}
	most(before+2+4*procs, "peers of several processes")
	first.Kill()
	for _, w := range others[1:] {
		w.Kill()
	}
	most(before, "one peer is left, as before")
}

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestIdlePeers: a peer of this host takes five descriptors, and none when it is removed.
func TestIdlePeers(t *testing.T) {
	t.Parallel()
	const n = 20
	o := worker.Options{Env: testenv.Need(t), Setenv: []string{"GORAIL_PROVIDER=sm"}}
	hub, other := process(t, o), process(t, o)
	h := agent(hub, o.Env, "hub")
	var leaves []*worker.Agent
	for i := range n + 1 {
		leaves = append(leaves, agent(other, o.Env, fmt.Sprint("leaf", i)))
	}
	add := func(a *worker.Agent) {
		h.Learn(a)
		require.NoError(t, h.GenNotif(a.Name, []byte("hello")))
		require.Len(t, a.WaitNotifs(1, limit), 1)
	}
	add(leaves[0]) // opens what an engine opens once
	before := hub.Stats().FDs
	for _, a := range leaves[1:] {
		add(a)
	}
	require.True(t, worker.Eventually(limit, func() bool { return hub.Stats().FDs-before <= 5*n }), "%d descriptors for %d peers", hub.Stats().FDs-before, n)
	for _, a := range leaves[1:] {
		require.NoError(t, h.Invalidate(a.Name))
	}
	require.True(t, worker.Eventually(limit, func() bool { return hub.Stats().FDs <= before }), "%d descriptors stay", hub.Stats().FDs-before)
}

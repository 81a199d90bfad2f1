package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/worker"
)

// autoProvider are environment variables of workers in which GORAIL chooses the providers.
var autoProvider = []string{"GORAIL_PROVIDER=auto", "GORAIL_LOG=info"}

func agentOf(t testing.TB, name string, o worker.Options) *worker.Agent {
	o.Env = ours(t)
	return agent(process(t, o), o.Env, name)
}

// TestMemoryInPost: a small transfer has ended when its post returns, its notification included. The post of a large
// transfer returns with the transfer in progress.
func TestMemoryInPost(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		env := ours(t)
		alice, bob := agent(process(t, worker.Options{Env: env, Setenv: autoProvider}), env, "alice", progress(on)), agentOf(t, "bob", worker.Options{Setenv: autoProvider})
		a, b := alice.Buffer(64<<20, seedA), bob.Buffer(64<<20, seedB)
		alice.Learn(bob)
		small := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(worker.Span(0, 4096)), Remote: b.At(worker.Span(0, 4096)), Peer: "bob", Notif: []byte("s")})
		large := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		small.Do(limit) // connects
		ended := 0
		for range 100 { // the post does not copy while another thread holds the rail
			if small.Post() == nixlapi.Success {
				ended++
			} else {
				small.Wait(limit)
			}
		}
		require.Greater(t, ended, 50)
		require.Equal(t, nixlapi.InProgress, large.Post())
		require.Equal(t, nixlapi.Success, large.Wait(limit))
		b.Want(seedA)
		require.Len(t, bob.WaitNotifs(101, limit), 101)
	}
}

// TestMemoryTargetStopped: transfers complete while the target's process is stopped.
func TestMemoryTargetStopped(t *testing.T) {
	t.Parallel()
	alice, bob := agentOf(t, "alice", worker.Options{Setenv: autoProvider}), agentOf(t, "bob", worker.Options{Setenv: autoProvider})
	a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
	alice.Learn(bob)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	a.Fill(seedC)
	require.NoError(t, syscall.Kill(bob.Pid(), syscall.SIGSTOP))
	began := time.Now()
	x.Do(limit)
	require.Less(t, time.Since(began), 5*time.Second)
	require.NoError(t, syscall.Kill(bob.Pid(), syscall.SIGCONT))
	b.Want(seedC)
}

// assisted reads two sums from an engine's stats_file: bytes copied for peers, and bytes copied by peers.
func assisted(t *testing.T, file string) (forPeers, byPeers uint64) {
	s := snapshot(t, file)
	for _, r := range s.Rails {
		forPeers += r.ForPeers
		byPeers += r.ByPeers
	}
	return forPeers, byPeers
}

// TestMemoryTargetAssists: a target that polls copies a part of the bytes of WRITEs and READs: as soon as it has a processor meanwhile. A target
// that does not poll, or has copy_for_peers=off, copies nothing.
func TestMemoryTargetAssists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		polls   bool
		opt     string
		assists bool
	}{{true, "on", true}, {false, "on", false}, {true, "off", false}} {
		dir := t.TempDir()
		stat := func(name string) string { return filepath.Join(dir, name) }
		alice := agentOf(t, "alice", worker.Options{Setenv: append([]string{"GORAIL_STATS_FILE=" + stat("alice")}, autoProvider...)})
		bob := agentOf(t, "bob", worker.Options{Setenv: append([]string{"GORAIL_STATS_FILE=" + stat("bob"), "GORAIL_COPY_FOR_PEERS=" + c.opt, "GORAIL_STATS_INTERVAL=100ms"}, autoProvider...)})
		if c.polls {
			bob.Spinning()
		}
		var sum uint64
		for _, size := range []uint64{1 << 20, 5<<20 + 12345} {
			a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
			alice.Learn(bob)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				for round := range uint64(rounds(1, 4)) {
					from, to := a, b
					if op == nixlapi.Read {
						from, to = b, a
					}
					from.Fill(100 + round)
					to.Fill(200 + round)
					l := x.Loop(worker.LoopArgs{N: 100, Timeout: limit})
					require.Equal(t, 100, l.Done, l.Status)
					to.Want(100 + round)
					from.Want(100 + round)
					sum += 100 * size
				}
				if c.assists {
					require.True(t, worker.Eventually(limit, func() bool {
						l := x.Loop(worker.LoopArgs{N: 100, Timeout: limit})
						require.Equal(t, 100, l.Done, l.Status)
						sum += 100 * size
						if _, err := os.Stat(stat("bob")); os.IsNotExist(err) { // stats_interval has not passed yet
							return false
						}
						forPeers, _ := assisted(t, stat("bob"))
						return forPeers > 0
					}), "the target has copied nothing")
				}
				release(t, x)
			})
		}
		require.NoError(t, alice.Close())
		require.NoError(t, bob.Close())
		forPeers, _ := assisted(t, stat("bob"))
		_, byPeers := assisted(t, stat("alice"))
		require.Equal(t, forPeers, byPeers)
		if c.assists {
			require.Less(t, byPeers, sum)
		} else {
			require.Zero(t, byPeers)
		}
	}
}

// TestMemoryAssistantStopped: a target that copies for its peer is stopped at any moment, and the transfer goes on without
// it. The transfer waits for the target only if the target has taken a piece and has not yet begun to copy it.
func TestMemoryAssistantStopped(t *testing.T) {
	t.Parallel()
	const rounds, n, patience = 20, 300, 5 * time.Second // on a starved host 300 MiB take seconds
	alice, bob := agentOf(t, "alice", worker.Options{Setenv: autoProvider}), agentOf(t, "bob", worker.Options{Setenv: autoProvider})
	a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
	alice.Learn(bob)
	bob.Spinning()
	w := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	r := alice.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
	without := 0
	for i := range uint64(rounds) {
		a.Fill(100 + i)
		began := w.LoopAsync(worker.LoopArgs{N: n, Timeout: limit})
		time.Sleep(5*time.Millisecond + time.Duration(i)*137*time.Microsecond) // another moment in each round
		require.NoError(t, syscall.Kill(bob.Pid(), syscall.SIGSTOP))
		on := time.AfterFunc(patience, func() { _ = syscall.Kill(bob.Pid(), syscall.SIGCONT) })
		l := began.Wait()
		if on.Stop() {
			without++
			require.NoError(t, syscall.Kill(bob.Pid(), syscall.SIGCONT))
		}
		require.Equal(t, n, l.Done, l.Status)
		b.Want(100 + i)
		r.Do(limit)
		a.Want(100 + i)
	}
	require.Greater(t, without, rounds/4)
}

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
	sent := ha.Sent("fast0") + ha.Sent("slow0")
	byTCP(t, alice, bob, file, "another network namespace", "fast0", "slow0")
	require.Greater(t, ha.Sent("fast0")+ha.Sent("slow0")-sent, uint64(1<<20))
}

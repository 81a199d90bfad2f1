package e2e

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
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

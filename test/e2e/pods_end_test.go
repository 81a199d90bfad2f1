package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// told is the time within which an engine reports a killed peer of its node.
var told = testenv.Patient(2 * time.Second)

// podPair is two pods with an agent each, which have moved bytes.
func podPair(t *testing.T, n *node) (pa, pb *pod, alice, bob *worker.Agent, a, b *worker.Buf) {
	t.Helper()
	pa, pb = n.pod(), n.pod()
	alice, bob = pa.start("alice"), pb.start("bob")
	bob.Polling(true)
	size := uint64(rounds(16, 64)) << 20
	a, b = alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	requireWay(t, alice, "bob", wayRing)
	return pa, pb, alice, bob, a, b
}

// TestPodKilled: a pod's process gets SIGKILL while transfers are in flight, as initiator or as target. Its peer is told within two
// seconds, and removes what the process left in the folder.
func TestPodKilled(t *testing.T) {
	t.Parallel()
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		t.Run("target/"+op.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, _, alice, bob, a, b := podPair(t, n)
			x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, bob.WaitNotifs(3, limit))
			bob.Kill()
			began := time.Now()
			require.True(t, loop.Wait().Status.Failed())
			require.Less(t, time.Since(began), told)
			expectLost(t, alice, x)
			if x.Release() != nil {
				require.NoError(t, x.Release())
			}
			require.NoError(t, alice.Exit())
			require.Empty(t, n.files())
		})
		t.Run("initiator/"+op.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, _, alice, bob, a, b := podPair(t, n)
			bob.Learn(alice)
			back := bob.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: b.Span(0, 4096), Remote: a.Span(0, 4096), Peer: "alice"})
			back.Do(limit)
			x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, bob.WaitNotifs(3, limit))
			alice.Kill()
			began := time.Now()
			require.True(t, worker.Eventually(lost, func() bool {
				s := back.Post()
				if s == nixlapi.InProgress {
					s = back.Wait(lost)
				}
				return s.Failed()
			}))
			require.Less(t, time.Since(began), told)
			b.Fill(seedC) // nobody writes there any more
			release(t, back)
			b.Want(seedC)
			require.NoError(t, bob.Exit())
			require.Empty(t, n.files())
		})
	}
}

// TestPodRestart: a pod's process is killed or ends, and the next container of that pod starts at once under the same name.
func TestPodRestart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pa, pb := n.pod(), n.pod()
	alice := pa.start("alice")
	a := alice.Buffer(1<<20, seedA)
	for i := range 4 {
		bob := pb.start("bob")
		bob.Polling(true)
		b := bob.Buffer(1<<20, seedB)
		alice.Learn(bob)
		x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("x")})
		l := x.Loop(worker.LoopArgs{N: 20, Timeout: limit})
		require.Equal(t, 20, l.Done, l.Status)
		require.Len(t, bob.WaitNotifs(20, limit), 20)
		b.Want(seedA)
		requireWay(t, alice, "bob", wayRing)
		if i%2 == 0 {
			bob.Kill()
		} else {
			require.NoError(t, bob.Exit())
		}
		forget(t, alice, "bob")
		require.NoError(t, x.Release())
		alice.Forget() // requireWay reads what comes from now on
	}
	require.NoError(t, alice.Exit())
	require.True(t, worker.Eventually(limit, func() bool { return len(n.files()) == 0 }), "%q", n.files())
}

// TestPodsBothKilled: both processes get SIGKILL. What they leave in the folder goes with the next engine of their user.
func TestPodsBothKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pa, pb, alice, bob, _, _ := podPair(t, n)
	alice.Kill()
	bob.Kill()
	alice, bob = pa.start("alice"), pb.start("bob")
	small(t, alice, bob)
	requireWay(t, alice, "bob", wayRing)
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
	require.Empty(t, n.files())
}

// TestPodStopped: a pod's process is stopped while transfers and notifications are in flight, and continues. Nothing is lost. The long form
// stops it for nine seconds and for a minute, too.
func TestPodStopped(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{3 * time.Second, 9 * time.Second, time.Minute}[:rounds(1, 3)] {
		for _, who := range []string{"initiator", "target"} {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				if testing.Short() && (who == "target") != (op == nixlapi.Write) {
					continue
				}
				t.Run(d.String()+"/"+who+"/"+op.String(), func(t *testing.T) {
					t.Parallel()
					stopPod(t, d, who, op)
				})
			}
		}
	}
}

func stopPod(t *testing.T, d time.Duration, who string, op nixlapi.Op) {
	const notes = 100
	opts := params("xfer_timeout", "5m", "connect_timeout", "5m")
	n := newNode(t)
	alice, bob := n.pod().start("alice", opts), n.pod().start("bob", opts)
	bob.Polling(true)
	a, b := alice.Buffer(64<<20, seedA), bob.Buffer(64<<20, seedB)
	alice.Learn(bob)
	from, to := a, b
	if op == nixlapi.Read {
		from, to = b, a
	}
	x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("x")})
	x.Do(limit)
	from.Fill(seedC)
	sent := alice.GenNotifsAsync("bob", "n", notes)
	require.Nil(t, sent.Wait().Err)
	require.False(t, x.Post().Failed())
	w := map[string]*worker.Agent{"initiator": alice, "target": bob}[who]
	w.Stop()
	time.Sleep(d)
	w.Cont()
	require.Equal(t, nixlapi.Success, x.Wait(long), "%s\n%s", alice.Output(), bob.Output())
	to.Want(seedC)
	from.Want(seedC)
	require.Len(t, bob.WaitNotifs(notes+2, limit), notes+2)
	requireWay(t, alice, "bob", wayRing)
	for _, w := range []*worker.Agent{alice, bob} {
		require.NotContains(t, w.Output(), "peer lost")
		require.NotContains(t, w.Output(), "session with a peer suspended")
		require.NoError(t, w.Exit())
	}
	require.Empty(t, n.files())
}

package inside

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// disconnectLimit is the time within which a peer's death must be detected. It is shorter than peer_timeout (20 s in guests): the end of
// the connection reports the death.
const disconnectLimit = 15 * time.Second

// TestPeerKilled: the agent at host B is killed during a transfer. The transfer fails with NIXL_ERR_REMOTE_DISCONNECT within
// disconnectLimit.
func TestPeerKilled(t *testing.T) {
	p := needPair(t, 1)
	for _, c := range ways {
		t.Run(c.op.String(), func(t *testing.T) {
			p := p
			p.t = t
			alice, bob, a, b := p.connect(32 << 20)
			x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.Len(t, bob.WaitNotifs(2, limit), 2)
			before := p.passed(c.from)[0]
			require.True(t, eventually(func() bool { return p.passed(c.from)[0]-before > 1<<20 }))
			bob.Kill()
			began := time.Now()
			l := loop.Wait()
			require.True(t, l.Status.Failed(), "%d transfers, then %s", l.Done, l.Status)
			require.Less(t, time.Since(began), disconnectLimit)
			t.Logf("transfer failed %v after the kill", time.Since(began))
			require.Contains(t, alice.Output(), "NIXL_ERR_REMOTE_DISCONNECT")
			require.NotEqual(t, nixlapi.Success, x.Post())
			if x.Release() != nil {
				require.NoError(t, x.Release())
			}
			require.NoError(t, alice.Exit())
		})
	}
}

// TestMemlock: a process may lock at most 16 MiB. The device refuses a larger registration. The log names the limit and how to raise it.
// A transfer of that memory is refused. Smaller registrations and their transfers succeed.
func TestMemlock(t *testing.T) {
	p := need(t, 1)
	var l unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l))
	if l.Cur != 16<<20 {
		t.Skip("needs RLIMIT_MEMLOCK of 16 MiB")
	}
	alice, bob, a, b := p.connect(1 << 20)
	big := alice.Alloc(64<<20, hostmem.Anon)
	require.NoError(t, alice.Register(big.All())) // an error would poison the agent's metadata
	const what, most = "ibv_reg_mr of 67108864 bytes", "RLIMIT_MEMLOCK: 16384 KiB may be locked"
	const how = "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service"
	says(t, alice, what, most, how)
	alice.Forget()
	_, err := alice.TryXfer(worker.XferSpec{Op: nixlapi.Write, Local: big.Span(0, 1<<20), Remote: b.All(), Peer: "bob"})
	require.Error(t, err)
	says(t, alice, "its local memory could not be registered", most, how)
	require.NoError(t, alice.Deregister(big.All()))
	c := alice.Buffer(1<<20, 3)
	for seed, mine := range map[uint64]*worker.Buf{50: a, 60: c} {
		for _, way := range ways {
			src, dst := sides(way.op, mine, b)
			src.Fill(seed)
			alice.Xfer(worker.XferSpec{Op: way.op, Local: mine.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
			dst.Want(seed)
			seed++
		}
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

// TestSourceReused: after a transfer succeeds, the application may overwrite the source. After the notification arrives, the target has
// all data. The test overwrites the source at once and compares the target, in 200 rounds.
func TestSourceReused(t *testing.T) {
	p := needPair(t, 1)
	const rounds, size = 200, 1 << 20 // large enough that two rails both take part
	alice, bob, a, b := p.connect(size)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	for i := range uint64(rounds) {
		a.Fill(i)
		note := fmt.Appendf(nil, "n%d", i)
		st := x.PostNotif(note)
		require.False(t, st.Failed(), "round %d: %s\n%s\n%s", i, st, alice.Output(), bob.Output())
		require.Equal(t, nixlapi.Success, x.Wait(limit), "round %d\n%s\n%s", i, alice.Output(), bob.Output())
		a.Fill(^i)
		require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: note}}, bob.WaitNotifs(1, limit))
		b.Want(i)
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

// TestYama: if Yama's scope forbids CMA, transfers use the ring, and a line names the scope. With scope 1 the option ptracer permits
// CMA.
func TestYama(t *testing.T) {
	scope := os.Getenv("GORAIL_YAMA")
	if scope == "" {
		t.Skip("needs GORAIL_YAMA with the number of Yama's scope")
	}
	for _, ptracer := range []string{"off", "on"} {
		t.Run("ptracer="+ptracer, func(t *testing.T) {
			agent := func(name string) *worker.Agent {
				env := testenv.Need(t)
				w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"GORAIL_PROVIDER=sm,tcp", "GORAIL_LOG=info", "GORAIL_PTRACER=" + ptracer}})
				return w.Agent(worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true})
			}
			alice, bob := agent("alice"), agent("bob")
			bob.Polling(true)
			a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
			alice.Learn(bob)
			alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
			b.Want(seedA)
			require.Len(t, bob.WaitNotifs(1, limit), 1)
			says(t, alice, "peer connected", "rails=sm/memory", "session=initiator")
			if scope != "0" && !(scope == "1" && ptracer == "on") {
				says(t, alice, "level=INFO", "peer of this host", "ring, mapped", "Yama's scope is "+scope)
			}
		})
	}
}

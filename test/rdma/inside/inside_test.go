// Package inside has tests for a guest with rails (package rdma runs them there): hosts A and B are told apart by their
// devices.
package inside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/nixl"
	"gorail/test/testenv"
	"gorail/test/worker"
)

const (
	limit        = time.Minute
	seedA, seedB = 0xa, 0xb
)

func TestMain(m *testing.M) {
	worker.MaybeRun()
	os.Exit(m.Run())
}

// host is an agent in a process of its own that uses only that host's devices.
func host(t testing.TB, env testenv.Env, name, letter string) *worker.Agent {
	return hostOn(t, env, name, letter+"*")
}

// hostOn uses those of the devices that the glob names: "A0".
func hostOn(t testing.TB, env testenv.Env, name, devices string) *worker.Agent {
	w := worker.Start(t, worker.Options{Env: env})
	return w.Agent(worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true,
		Params: map[string]string{"devices": "rxe" + devices}})
}

// sent is what has left through each of a host's interfaces, bytes.
func sent(t testing.TB, letter string) (n []int) {
	files, err := filepath.Glob("/sys/class/net/v" + letter + "[0-9]*/statistics/tx_bytes")
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		v, err := strconv.Atoi(strings.TrimSpace(string(b)))
		require.NoError(t, err)
		n = append(n, v)
	}
	return n
}

// TestBetweenHosts: WRITE and READ go from A's devices to B's, byte-exact, and cross the wires.
func TestBetweenHosts(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband/rxeA0"); err != nil {
		t.Skip("not in a guest with rxe rails")
	}
	const size = 4 << 20
	env := testenv.Need(t)
	alice, bob := host(t, env, "alice", "A"), host(t, env, "bob", "B")
	bob.Polling(true)
	a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	for _, c := range []struct {
		op     nixl.Op
		sender string
	}{{nixl.Write, "A"}, {nixl.Read, "B"}} {
		t.Run(c.op.String(), func(t *testing.T) {
			a.Fill(seedA)
			b.Fill(seedB)
			before := sent(t, c.sender)
			alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
			require.Len(t, bob.WaitNotifs(1, limit), 1)
			seed := uint64(seedA)
			if c.op == nixl.Read {
				seed = seedB
			}
			a.Want(seed)
			b.Want(seed)
			total := 0
			for i, n := range sent(t, c.sender) {
				t.Logf("rail %d: %d bytes", i, n-before[i])
				total += n - before[i]
			}
			require.Greater(t, total, size)
		})
	}
}

// TestRailDown: the wire of a rail goes down under a transfer, which ends well over the other; up again, it is used.
func TestRailDown(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband/rxeA1"); err != nil {
		t.Skip("not in a guest with two rxe rails")
	}
	const size = 32 << 20
	env := testenv.Need(t)
	alice, bob := host(t, env, "alice", "A"), host(t, env, "bob", "B")
	bob.Polling(true)
	a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	link := func(state string) {
		out, err := exec.Command("ip", "link", "set", "vB1", state).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for i, op := range []nixl.Op{nixl.Write, nixl.Read} {
		from, src, dst := "A", a, b
		if op == nixl.Read {
			from, src, dst = "B", b, a
		}
		x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
		x.Do(limit)
		src.Fill(uint64(100 + i))
		before := sent(t, from)[1]
		require.False(t, x.Post().Failed())
		require.True(t, eventually(func() bool { return sent(t, from)[1]-before > 1<<20 }), "%s: rail 1 is not used", op)
		link("down")
		require.Equal(t, nixl.Success, x.Wait(limit), "%s\n%s", alice.Output(), bob.Output())
		dst.Want(uint64(100 + i))
		link("up")
		require.True(t, eventually(func() bool {
			before := sent(t, from)[1]
			x.Do(limit)
			return sent(t, from)[1]-before > 1<<20
		}), "%s: rail 1 is not used again\n%s\n%s", op, alice.Output(), bob.Output())
		dst.Want(uint64(100 + i))
		require.GreaterOrEqual(t, len(bob.WaitNotifs(3, limit)), 3)
	}
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

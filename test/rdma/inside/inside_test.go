// Package inside has tests that run inside guests with rails; package rdma runs them there. If one guest is both hosts A and B, the
// devices' names distinguish the hosts.
package inside

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

func run(command ...string) (string, error) {
	b, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	return strings.TrimSpace(string(b)), err
}

// TestBetweenHosts: WRITE and READ between A's and B's devices are byte-exact and cross the rails.
func TestBetweenHosts(t *testing.T) { betweenHosts(t, need(t, 1)) }

// TestTwoHosts: as TestBetweenHosts, between two guests. Each rail carries a share, and the control channel uses the rails' addresses.
func TestTwoHosts(t *testing.T) { betweenHosts(t, needPair(t, 1)) }

// ways are the two operations, each with the host that sends the data.
var ways = []struct {
	op   nixlapi.Op
	from string
}{{nixlapi.Write, "A"}, {nixlapi.Read, "B"}}

// sides returns the buffers a and b as source and destination of an operation.
func sides(op nixlapi.Op, a, b *worker.Buf) (src, dst *worker.Buf) {
	if op == nixlapi.Read {
		return b, a
	}
	return a, b
}

func betweenHosts(t *testing.T, p place) {
	const size = 16 << 20
	alice, bob, a, b := p.connect(size)
	alice.Polling(true)
	bob.Learn(alice)
	for i, c := range ways {
		t.Run(c.op.String(), func(t *testing.T) {
			src, _ := sides(c.op, a, b)
			seed := uint64(100 + i)
			src.Fill(seed)
			x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
			once := func() (bytes []int) {
				before := p.passed(c.from)
				x.Do(limit)
				require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("n")}}, bob.WaitNotifs(1, limit))
				for r, n := range p.passed(c.from) {
					bytes = append(bytes, n-before[r])
				}
				return bytes
			}
			total := 0
			for _, n := range once() {
				total += n
			}
			require.Greater(t, total, size)
			a.Want(seed)
			b.Want(seed)
			var bytes []int
			require.True(t, eventually(func() bool { // a rail is probed before it carries data
				bytes = once()
				return slices.Min(bytes) > size/p.rails/8
			}), "rails: %v", &bytes)
		})
	}
	require.NoError(t, bob.GenNotif("alice", []byte("back")))
	require.Equal(t, []nixlapi.Notif{{From: "bob", Msg: []byte("back")}}, alice.WaitNotifs(1, limit))
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

// TestRailDown: a rail goes down during a transfer. The transfer succeeds over the other rail. The rail is used again when it is up.
func TestRailDown(t *testing.T) {
	p := need(t, 2)
	link := func(state string) func() {
		return func() { p.at("B", "ip", "link", "set", p.net("B", 1), state) }
	}
	cut(t, p, link("down"), link("up"))
}

// TestPortLate: a port is down when the agents are created, and the log names the port. When the port comes up, its rail carries data of
// the existing session and of memory registered before. Then the rail fails and recovers like others.
func TestPortLate(t *testing.T) {
	const size = 32 << 20
	p := need(t, 2)
	link := func(state string) func() {
		return func() { p.at("B", "ip", "link", "set", p.net("B", 1), state) }
	}
	link("down")()
	alice, bob, a, b := p.connect(size, "log", "info")
	for _, w := range []*worker.Agent{alice, bob} {
		says(t, w, "left_out=", "1: the port is DOWN; joins when it comes up")
	}
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	b.Want(seedA)
	require.Len(t, bob.WaitNotifs(1, limit), 1)
	link("up")()
	says(t, alice, "rail joined", "/"+p.kind+"A1")
	says(t, bob, "rail joined", "/"+p.kind+"B1")
	rounds, used := 0, func() bool {
		before := p.passed("A")[1]
		x.Do(limit)
		return p.passed("A")[1]-before > size/8
	}
	a.Fill(100)
	require.True(t, eventually(func() bool { rounds++; return used() }), "%s\n%s", alice.Output(), bob.Output())
	b.Want(100)
	require.Len(t, bob.WaitNotifs(rounds, limit), rounds)
	p.cutOnce(alice, bob, a, b, x, nixlapi.Write, "A", 101, 1, link("down"))
	link("up")()
	require.True(t, eventually(used), "not used again\n%s\n%s", alice.Output(), bob.Output())
	b.Want(101)
}

// TestPeerRailSilent: host B drops all packets of a rail. No device of either host reports an event.
func TestPeerRailSilent(t *testing.T) {
	p := needPair(t, 2)
	cut(t, p, func() { p.at("B", "tc", "qdisc", "replace", "dev", p.net("B", 1), "root", "netem", "loss", "100%") },
		func() { p.at("B", "tc", "qdisc", "del", "dev", p.net("B", 1), "root") })
}

// cut takes rail 1 down during a transfer and restores it, for WRITE and for READ.
func cut(t *testing.T, p place, off, on func()) {
	const size = 32 << 20
	alice, bob, a, b := p.connect(size)
	for i, c := range ways {
		_, dst := sides(c.op, a, b)
		x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
		x.Do(limit)
		p.cutOnce(alice, bob, a, b, x, c.op, c.from, uint64(100+i), 1, off)
		on()
		require.True(t, eventually(func() bool {
			before := p.passed(c.from)[1]
			x.Do(limit)
			return p.passed(c.from)[1]-before > 1<<20
		}), "%s: rail 1 is not used again\n%s\n%s", c.op, alice.Output(), bob.Output())
		dst.Want(uint64(100 + i))
		require.GreaterOrEqual(t, len(bob.WaitNotifs(3, limit)), 3)
	}
}

// TestPeerRailDown: an interface of host B goes down, another one for each operation. A guest of a pair cannot take its interface up again.
func TestPeerRailDown(t *testing.T) {
	p := needPair(t, 3)
	alice, bob, a, b := p.connect(48 << 20)
	for i, c := range ways {
		x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
		x.Do(limit)
		p.cutOnce(alice, bob, a, b, x, c.op, c.from, uint64(100+i), 1+i, func() { p.at("B", "ip", "link", "set", p.net("B", 1+i), "down") })
		require.Len(t, bob.WaitNotifs(2, limit), 2)
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

// cutOnce posts a transfer and takes a rail down when the rail has carried 1 MiB. The transfer must succeed.
func (p place) cutOnce(alice, bob *worker.Agent, a, b *worker.Buf, x *worker.Xfer, op nixlapi.Op, from string, seed uint64, rail int, off func()) {
	p.t.Helper()
	src, dst := sides(op, a, b)
	src.Fill(seed)
	before := p.passed(from)[rail]
	require.False(p.t, x.Post().Failed())
	require.True(p.t, eventually(func() bool { return p.passed(from)[rail]-before > 1<<20 }), "%s: rail %d is not used", op, rail)
	off()
	require.Equal(p.t, nixlapi.Success, x.Wait(limit), "%s\n%s\n%s", op, alice.Output(), bob.Output())
	dst.Want(seed)
}

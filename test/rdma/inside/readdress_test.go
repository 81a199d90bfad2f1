package inside

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// ends are the two ends of one rail between two guests, with an agent at each that has no other rail.
type ends struct {
	place
	rail       int
	now        map[string]string // the address of each host
	alice, bob *worker.Agent
	a, b       *worker.Buf // what loops move
	c, d       *worker.Buf // of probes
	write, ret *worker.Xfer
	seed       uint64
}

// onRail starts the agents on a rail. The end of the test gives both hosts their first addresses again.
func onRail(t *testing.T, p place, rail int) *ends {
	t.Helper()
	const size = 8 << 20
	p.t = t
	e := &ends{place: p, rail: rail, now: map[string]string{}, seed: 1000}
	for host, n := range map[string]int{"A": 1, "B": 2} {
		was := fmt.Sprintf("10.0.%d.%d", rail, n)
		e.now[host] = was
		t.Cleanup(func() {
			p.at(host, "sh", "-c", fmt.Sprintf("ip -4 addr flush dev %[1]s && ip addr add %[2]s/24 dev %[1]s", p.net(host, rail), was))
			require.True(t, eventually(func() bool { return p.gid(host, rail, was) >= 0 }))
		})
	}
	e.alice, e.bob = p.agentOn("alice", fmt.Sprint("A", rail), "log", "info"), p.agentOn("bob", fmt.Sprint("B", rail), "log", "info")
	e.alice.Polling(true)
	e.bob.Polling(true)
	e.a, e.b = e.alice.Buffer(size, seedA), e.bob.Buffer(size, seedB)
	e.c, e.d = e.alice.Buffer(size/8, seedA), e.bob.Buffer(size/8, seedB)
	e.alice.Learn(e.bob)
	e.bob.Learn(e.alice)
	e.write = e.alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: e.c.All(), Remote: e.d.All(), Peer: "bob"})
	e.ret = e.bob.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: e.d.All(), Remote: e.c.All(), Peer: "alice"})
	e.works()
	return e
}

// shell runs a line at a host. IF is the rail's interface.
func (e *ends) shell(host, format string, args ...any) {
	e.t.Helper()
	e.at(host, "sh", "-c", strings.ReplaceAll(fmt.Sprintf(format, args...), "IF", e.net(host, e.rail)))
}

// to replaces the address of a host.
func (e *ends) to(host, now string) {
	e.t.Helper()
	e.shell(host, "ip addr del %s/24 dev IF && ip addr add %s/24 dev IF", e.now[host], now)
	e.now[host] = now
}

// agentAt is the agent of a host.
func (e *ends) agentAt(host string) *worker.Agent {
	return map[string]*worker.Agent{"A": e.alice, "B": e.bob}[host]
}

func (e *ends) output() string { return e.alice.Output() + "\n\n" + e.bob.Output() }

// works posts in both directions until a transfer is through, and compares the bytes.
func (e *ends) works() (took time.Duration) {
	e.t.Helper()
	began := time.Now()
	for _, way := range []struct {
		x        *worker.Xfer
		from, to *worker.Buf
	}{{e.write, e.c, e.d}, {e.ret, e.d, e.c}} {
		e.seed++
		way.from.Fill(e.seed)
		require.True(e.t, eventually(func() bool {
			s := way.x.Try(limit)
			return s == nixlapi.Success
		}), "%s", e.output())
		way.to.Want(e.seed)
	}
	return time.Since(began)
}

func (e *ends) exit() {
	e.t.Helper()
	require.NoError(e.t, e.alice.Exit())
	require.NoError(e.t, e.bob.Exit())
}

// TestAddressReplaced: the address of the only rail is replaced at the initiator, at the target, at both in turn; during transfers of both
// operations, and while nothing is under way. The sessions of both directions heal without the applications. What a transfer that ended with
// an error could have touched is not touched after its end.
func TestAddressReplaced(t *testing.T) {
	p := needPair(t, 2)
	for _, hosts := range []string{"A", "B", "AB"} {
		for _, op := range []string{"idle", "WRITE", "READ"} {
			t.Run(hosts+" "+op, func(t *testing.T) {
				e := onRail(t, p, 1)
				for i, host := range strings.Split(hosts, "") {
					spec := worker.XferSpec{Op: nixlapi.Write, Local: e.a.All(), Remote: e.b.All(), Peer: "bob", Notif: []byte("n")}
					src, dst := e.a, e.b
					if op == "READ" {
						spec.Op, src, dst = nixlapi.Read, e.b, e.a
					}
					var loop *worker.Future[worker.LoopResult]
					src.Fill(uint64(100 + i))
					x := e.alice.Xfer(spec)
					if op != "idle" {
						loop = x.LoopAsync(worker.LoopArgs{N: 40, Timeout: limit})
						require.NotEmpty(t, e.bob.WaitNotifs(2, limit))
					}
					began, was := time.Now(), e.now[host]
					e.to(host, fmt.Sprintf("10.0.1.%d%d", 6, i))
					failed := false
					if loop != nil {
						out := loop.Wait()
						failed = out.Status.Failed()
						t.Logf("%s: %d transfers, the last: %s, %v after the change", host, out.Done, out.Status, time.Since(began))
						if failed {
							dst.Fill(seedB)
						} else {
							dst.Want(uint64(100 + i))
						}
					}
					says(t, e.agentAt(host), fmt.Sprintf("%s of %s is gone, now %s", was, p.net(host, 1), e.now[host]))
					t.Logf("%s: both ways work %v after the change (%v)", host, time.Since(began), e.works())
					if failed {
						dst.Want(seedB)
					}
					require.NoError(t, x.Release())
				}
				e.exit()
			})
		}
	}
}

// TestAddressBothEnds: the addresses of both ends of one of two rails are replaced at once. No transfer fails, and the rail is used again.
func TestAddressBothEnds(t *testing.T) {
	p := needPair(t, 3)
	const size = 16 << 20
	for _, host := range []string{"A", "B"} {
		n := map[string]int{"A": 1, "B": 2}[host]
		t.Cleanup(func() {
			p.at(host, "sh", "-c", fmt.Sprintf("ip -4 addr flush dev %[1]s && ip addr add 10.0.1.%[2]d/24 dev %[1]s", p.net(host, 1), n))
		})
	}
	alice, bob := p.agentOn("alice", "A[12]", "log", "info"), p.agentOn("bob", "B[12]", "log", "info")
	bob.Polling(true)
	a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	loop := x.LoopAsync(worker.LoopArgs{N: 40, Timeout: limit})
	require.NotEmpty(t, bob.WaitNotifs(2, limit))
	for _, host := range []string{"A", "B"} {
		n := map[string]int{"A": 1, "B": 2}[host]
		p.at(host, "sh", "-c", fmt.Sprintf("ip addr del 10.0.1.%[2]d/24 dev %[1]s && ip addr add 10.0.1.6%[2]d/24 dev %[1]s", p.net(host, 1), n))
	}
	out := loop.Wait()
	require.Equal(t, nixlapi.Success, out.Status, "%s\n\n%s", alice.Output(), bob.Output())
	b.Want(seedA)
	says(t, alice, "10.0.1.1 of "+p.net("A", 1)+" is gone, now 10.0.1.61")
	says(t, bob, "10.0.1.2 of "+p.net("B", 1)+" is gone, now 10.0.1.62")
	began, rounds := time.Now(), 0
	require.True(t, eventually(func() bool {
		before := p.passed("A")[1]
		rounds++
		a.Fill(uint64(200 + rounds))
		x.Do(limit)
		b.Want(uint64(200 + rounds))
		return p.passed("A")[1]-before > size/8
	}), "rail 1 is not used again\n%s\n\n%s", alice.Output(), bob.Output())
	t.Logf("rail 1 is used again after %v, %d transfers", time.Since(began), rounds)
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

// TestAddressNone: the only rail loses its address, and its interface has none for a while, or one of another subnet, which the kernel puts at the same index of
// the GID table. Transfers end with an error, and what they could have touched is not touched any more. With another address all goes on.
func TestAddressNone(t *testing.T) {
	p := needPair(t, 2)
	for _, op := range []nixlapi.Op{nixlapi.Read, nixlapi.Write} {
		for _, host := range []string{"A", "B"} {
			t.Run(op.String()+" "+host, func(t *testing.T) {
				e := onRail(t, p, 1)
				x := e.alice.Xfer(worker.XferSpec{Op: op, Local: e.a.All(), Remote: e.b.All(), Peer: "bob", Notif: []byte("n")})
				loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
				require.NotEmpty(t, e.bob.WaitNotifs(2, limit))
				was := e.now[host]
				began := time.Now()
				e.shell(host, "ip addr del %s/24 dev IF", was)
				out := loop.Wait()
				took := time.Since(began)
				require.True(t, out.Status.Failed(), "%s\n%s", out.Status, e.output())
				t.Logf("%d transfers, then %s after %v", out.Done, out.Status, took)
				_, dst := sides(op, e.a, e.b)
				dst.Fill(77)
				if op == nixlapi.Read && host == "A" { // else bytes of a WRITE may land until the peer answers, and a peer without an address is a silent peer: peer_timeout
					require.Less(t, took, testenv.Patient(2*time.Second), "%s", e.output())
				}
				for range 3 {
					began := time.Now()
					s := e.write.Try(limit)
					t.Logf("a later post: %s after %v", s, time.Since(began))
					require.True(t, s.Failed(), "%s", e.output())
				}
				e.now[host] = "10.0.1.66"
				began = time.Now()
				e.shell(host, "ip addr add 10.0.1.66/24 dev IF")
				t.Logf("both ways work %v after the address (%v)", time.Since(began), e.works())
				dst.Want(77)
				require.NoError(t, x.Release())
				e.exit()
			})
		}
	}
}

// gid returns the index of an address in the GID table of a host's rail, or -1.
func (p place) gid(host string, rail int, addr string) int {
	var a [4]int
	_, err := fmt.Sscanf(addr, "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3])
	require.NoError(p.t, err)
	want := fmt.Sprintf("ffff:%02x%02x:%02x%02x", a[0], a[1], a[2], a[3])
	dir := fmt.Sprintf("/sys/class/infiniband/%s%s%d/ports/1", p.kind, host, rail)
	list := p.at(host, "sh", "-c", "cd "+dir+`; for i in $(seq 0 15); do echo "$(cat gids/$i) $(cat gid_attrs/types/$i 2>/dev/null)"; done`)
	for i, line := range strings.Split(list, "\n") {
		if strings.Contains(line, want) && strings.HasSuffix(line, "RoCE v2") {
			return i
		}
	}
	return -1
}

// TestAddressChange: the address of the peer's rail is removed and added again, then replaced by another address. The engines keep
// running, transfers continue, and later connections use the address at its new index.
func TestAddressChange(t *testing.T) {
	p := needPair(t, 2)
	const size = 16 << 20
	alice, bob, a, b := p.connect(size, "log", "info")
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	ip := func(args ...string) {
		p.at("B", append([]string{"ip", "addr"}, append(args, "dev", p.net("B", 1))...)...)
	}
	again := func(seed uint64, addr string) {
		t.Helper()
		require.True(t, eventually(func() bool { return p.gid("B", 1, addr) >= 0 }), "no GID for %s", addr)
		a.Fill(seed)
		require.True(t, eventually(func() bool {
			before := p.passed("A")[1]
			if s := x.Post(); s == nixlapi.InProgress {
				require.Equal(t, nixlapi.Success, x.Wait(limit), "%s\n%s", alice.Output(), bob.Output())
			}
			return p.passed("A")[1]-before > 1<<20
		}), "rail 1 is not used\n%s\n%s", alice.Output(), bob.Output())
		b.Want(seed)
	}
	was := p.gid("B", 1, "10.0.1.2")
	require.GreaterOrEqual(t, was, 0)
	require.False(t, x.Post().Failed())
	ip("del", "10.0.1.2/24")
	ip("add", "10.0.1.2/24")
	if s := x.Wait(limit); s != nixlapi.Success {
		t.Fatalf("%s\n%s\n%s", s, alice.Output(), bob.Output())
	}
	again(100, "10.0.1.2")
	t.Logf("10.0.1.2 was at %d, is at %d", was, p.gid("B", 1, "10.0.1.2"))

	require.False(t, x.Post().Failed())
	ip("del", "10.0.1.2/24")
	ip("add", "10.0.1.22/24")
	require.Equal(t, nixlapi.Success, x.Wait(limit), "%s\n%s", alice.Output(), bob.Output())
	says(t, bob, "10.0.1.2 of "+p.net("B", 1)+" is gone, now 10.0.1.22") // the byte counters also count retries to the old address
	again(101, "10.0.1.22")

	// New sessions use the new address from the start.
	carol := p.agent("carol", "A", "log", "info")
	c := carol.Buffer(size, 77)
	carol.Learn(bob)
	y := carol.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: c.All(), Remote: b.All(), Peer: "bob"})
	y.Do(limit)
	before := p.passed("A")[1]
	y.Do(limit)
	require.Greater(t, p.passed("A")[1]-before, 1<<20, "%s\n%s", carol.Output(), bob.Output())
	b.Want(77)
}

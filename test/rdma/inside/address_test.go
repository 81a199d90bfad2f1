package inside

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

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

// TestAddressMoves: the address of the only rail is replaced, at one end and then at the other. Sessions of both directions go on over the new
// addresses without the applications.
func TestAddressMoves(t *testing.T) {
	p := needPair(t, 3) // TestAddressChange replaces addresses of rail 1
	const size = 4 << 20
	alice, bob := p.agentOn("alice", "A2", "log", "info"), p.agentOn("bob", "B2", "log", "info")
	for _, w := range []*worker.Agent{alice, bob} {
		w.Polling(true)
	}
	a, b := alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	bob.Learn(alice)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	y := bob.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: b.All(), Remote: a.All(), Peer: "alice"})
	x.Do(limit)
	b.Want(seedA)
	y.Do(limit)
	through := func(x *worker.Xfer, from, to *worker.Buf, seed uint64) {
		t.Helper()
		from.Fill(seed)
		require.True(t, eventually(func() bool {
			s := x.Post()
			if s == nixlapi.InProgress {
				s = x.Wait(limit)
			}
			return s == nixlapi.Success
		}), "%s\n%s", alice.Output(), bob.Output())
		to.Want(seed)
	}
	for i, host := range []string{"B", "A"} {
		w, was, now := map[string]*worker.Agent{"A": alice, "B": bob}[host], "10.0.2."+string('2'-byte(i)), "10.0.2.2"+string('2'-byte(i))
		p.at(host, "ip", "addr", "del", was+"/24", "dev", p.net(host, 2))
		p.at(host, "ip", "addr", "add", now+"/24", "dev", p.net(host, 2))
		says(t, w, fmt.Sprintf("%s of %s is gone, now %s", was, p.net(host, 2), now))
		through(x, a, b, uint64(200+2*i))
		through(y, b, a, uint64(201+2*i))
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

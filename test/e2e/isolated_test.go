package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// isolatedRails makes two hosts with wires between them, and all addresses in one subnet: what comes in at a wire's end for the address of another is
// not answered, as on a rail-optimised fabric without a spine. Wire i is rail i of the first host, and rail there(i) of the second.
func isolatedRails(t testing.TB, n int, mbit uint64, there func(i int) int) (a, b *host) {
	t.Helper()
	testenv.Need(t)
	a, b = newHost(t), newHost(t)
	b.Reboot("00000000-1111-2222-3333-444444444444")
	for _, h := range []*host{a, b} {
		for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2", "rp_filter": "0"} {
			h.Sysctl("net/ipv4/conf/all/"+name, value)
		}
	}
	mask := net.CIDRMask(24, 32)
	for i := range n {
		here, other := fmt.Sprint("rail", i), fmt.Sprint("rail", there(i))
		from, to := net.IPv4(10, 79, 0, byte(1+i)), net.IPv4(10, 79, 0, byte(101+there(i)))
		a.WireAs(b.Host, here, other, &net.IPNet{IP: from, Mask: mask}, &net.IPNet{IP: to, Mask: mask})
		a.RouteFrom(here, from, 100+i)
		b.RouteFrom(other, to, 100+there(i))
		a.Shape(here, mbit)
		b.Shape(other, mbit)
	}
	return a, b
}

// wide are options of agents of a host that take two rails each.
func wide(t *testing.T) []string { return []string{"max_rails", "2", "local_dir", t.TempDir()} }

// TestRailsApart: rails of one subnet reach one rail of the other host each. Agents whose rails pair wrong by number find the right pairs, without a
// failed transfer, and use all rails. Later sessions with the host begin with them. One line says so. The first 16 MiB took 0.2 s by number and
// 3.5 s crossed (before the mend they failed after 30 s). The next session's took 1.4 s; its control connection took 1.2 s of these.
func TestRailsApart(t *testing.T) {
	t.Parallel()
	ours(t)
	const size, n, mbit = 16 << 20, 4, 200
	const learned = "some rails do not reach each other"
	for name, c := range map[string]struct {
		there func(i int) int
		opts  []string // of the second host's agents
		mine  []string // of the first host's
		rails int      // that carry bytes
		pairs []string
	}{
		"by number": {there: func(i int) int { return i }, rails: n},
		"crossed":   {there: func(i int) int { return (i + 1) % n }, rails: n, pairs: []string{"rail0>tcp/rail1", "rail1>tcp/rail2", "rail2>tcp/rail3", "rail3>tcp/rail0"}},
		"one less":  {there: func(i int) int { return i }, opts: []string{"devices", "!rail1"}, rails: n - 1, pairs: []string{"rail0>tcp/rail0", "rail2>tcp/rail2", "rail3>tcp/rail3"}},
		// The second agent's memory is on the rails that the first leaves: rail2 and rail3. Ours gets them, too.
		"wide": {there: func(i int) int { return i }, opts: wide(t), mine: wide(t), rails: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ha, hb := isolatedRails(t, n, mbit, c.there)
			env := testenv.Need(t)
			ini := ha.start("alice", params(append(c.mine, "log", "info")...))
			a := ini.Buffer(size, seedA)
			var first []time.Duration
			for i := range 2 {
				peer := fmt.Sprint("bob", i)
				p := &pairOf{env: env, ini: ini, tgt: hb.start(peer, params(append(c.opts, "log", "info")...))}
				p.tgt.Polling(true)
				b := p.tgt.Buffer(size, seedB)
				ini.Learn(p.tgt)
				x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: peer, Notif: []byte("n")})
				began := time.Now()
				x.Do(limit)
				first = append(first, time.Since(began))
				b.Want(seedA)
				require.True(t, worker.Eventually(limit, func() bool {
					before := sentBy(ha, n)
					x.Do(limit)
					used := 0
					for i, sent := range sentBy(ha, n) {
						if sent-before[i] > uint64(size/c.rails)*8/10 {
							used++
						}
					}
					return used == c.rails
				}), "%s", ini.Output())
				quietBut(t, p.tgt.Output())
			}
			t.Log("first transfers: ", first)
			require.NotContains(t, ini.Output(), "level=ERROR")
			if name == "by number" {
				require.NotContains(t, ini.Output(), learned)
				return
			}
			line := says(t, ini.Worker, learned) // of the first peer: when the last of the links without an answer has been tried
			require.Equal(t, 1, strings.Count(ini.Output(), learned), "%s", ini.Output())
			for _, pair := range c.pairs {
				require.Contains(t, line, pair)
			}
			quietBut(t, ini.Output())
		})
	}
}

// quietBut checks that nothing is a warning, but that a probe had no answer: on a busy machine it may end just before other pairs are tried.
func quietBut(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `msg="rail not connected`) {
			require.NotContains(t, line, "level=WARN")
		}
	}
}

package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/lab"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// rails makes two hosts with one wire for each rate in Mbit/s: "rail0", "rail1" and so on, shaped at both ends.
func rails(t testing.TB, mbit ...uint64) (a, b *host) {
	t.Helper()
	testenv.Need(t)
	ha, hb := lab.Rails(t, 78, mbit...)
	return &host{ha}, &host{hb}
}

// onRails starts one agent on each host. The target polls.
func onRails(t testing.TB, a, b *host, opts ...string) *pairOf {
	t.Helper()
	p := &pairOf{env: testenv.Need(t), ini: a.start("alice", params(opts...)), tgt: b.start("bob", params(opts...))}
	p.tgt.Polling(true)
	return p
}

// TestRailsShare: two equal rails carry about half of the bytes each. A rail of half the rate carries about a third.
func TestRailsShare(t *testing.T) {
	t.Parallel()
	ours(t)
	const size = 24 << 20
	for _, c := range []struct {
		mbit  []uint64
		share float64 // of the first rail
	}{{[]uint64{400, 400}, 0.5}, {[]uint64{400, 200}, 2. / 3}} {
		t.Run(fmt.Sprint(c.mbit), func(t *testing.T) {
			ha, hb := rails(t, c.mbit...)
			p := onRails(t, ha, hb, "log", "info")
			a, b := p.buffers(size)
			for i, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
				x.Do(limit) // proves the links and measures their rates
				from := []*host{ha, hb}[i]
				before := []uint64{from.Sent("rail0"), from.Sent("rail1")}
				x.Do(limit)
				one, two := from.Sent("rail0")-before[0], from.Sent("rail1")-before[1]
				require.Greater(t, one+two, uint64(size))
				require.InDelta(t, c.share, float64(one)/float64(one+two), 0.1, "%s: %d and %d bytes", op, one, two)
			}
			b.Want(seedA)
			says(t, p.ini.Worker, "peer connected", "rail0", "rail1")
		})
	}
}

// railStats reads the counters of an engine's rails from its stats_file, by device.
func railStats(t *testing.T, file string) map[string]stats.Rail {
	t.Helper()
	s := snapshot(t, file)
	by := map[string]stats.Rail{}
	for _, r := range s.Rails {
		by[r.Device] = r
	}
	return by
}

// TestRailLate: an interface is down when the agents start, and the log names it. When it comes up, it carries data of
// sessions and memory that are older than the rail. If one end of a wire is down, the other has no carrier: the test
// has an interface of each kind.
func TestRailLate(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"there", "here, without an address", "here"}[:rounds(2, 3)] {
		t.Run(end, func(t *testing.T) {
			const size = 32 << 20
			ha, hb := twoHosts(t)
			down, devices := ha, ""
			if end == "there" {
				down = hb
			}
			down.Cut("slow0")
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 1, 1), Mask: net.CIDRMask(24, 32)}}
			if strings.Contains(end, "without") {
				devices = "fast0,slow0" // an engine waits for an address only on an interface that devices names
				require.NoError(t, ha.NL.AddrDel(ha.Link("slow0"), addr))
			}
			require.True(t, worker.Eventually(limit, func() bool { return !ha.Carries("slow0") && !hb.Carries("slow0") }))
			files := []string{filepath.Join(t.TempDir(), "alice.json"), filepath.Join(t.TempDir(), "bob.json")}
			p := &pairOf{env: testenv.Need(t), ini: ha.start("alice", params("log", "info", "stats_file", files[0], "devices", devices)),
				tgt: hb.start("bob", params("log", "info", "stats_file", files[1]))}
			p.tgt.Polling(true)
			for _, w := range []*worker.Agent{p.ini, p.tgt} {
				says(t, w.Worker, "left_out=", "slow0: link is down; joins when it comes up")
			}
			a, b := p.buffers(size)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
			x.Do(limit)
			b.Want(seedA)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)

			down.Restore("slow0")
			if devices != "" {
				require.NoError(t, ha.NL.AddrAdd(ha.Link("slow0"), addr))
			}
			says(t, p.ini.Worker, "rail joined", "/slow0")
			says(t, p.tgt.Worker, "rail joined", "/slow0")
			before := ha.Sent("slow0")
			rounds := 0
			require.True(t, worker.Eventually(long, func() bool { // a prepared transfer uses the new rail once its link is proved
				rounds++
				a.Fill(uint64(seedC + rounds))
				x.Do(limit)
				b.Want(uint64(seedC + rounds))
				return ha.Sent("slow0")-before > size/4
			}), "%s\n%s", p.ini.Output(), p.tgt.Output())
			require.Len(t, p.tgt.WaitNotifs(rounds, limit), rounds)

			fresh, there := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
			p.ini.Learn(p.tgt)
			before = ha.Sent("slow0")
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: fresh.All(), Remote: there.All(), Peer: "bob"}).Do(limit)
			fresh.Want(seedB)
			require.NoError(t, p.ini.Close())
			require.NoError(t, p.tgt.Close())
			by := railStats(t, files[0])
			require.Positive(t, by["slow0"].BytesWritten)
			require.Positive(t, by["slow0"].BytesRead)
			require.EqualValues(t, uint64(rounds+1)*size, by["slow0"].BytesWritten+by["fast0"].BytesWritten)
			require.Zero(t, by["slow0"].Errors+by["slow0"].Retries)
		})
	}
}

// TestStoppedOverTwoRails: a side is stopped for longer than rail_timeout while small transfers go over two rails. Silence is not
// death: the session stays, and each stop costs at most one fence, since a rail is left without an idle or working other one then.
func TestStoppedOverTwoRails(t *testing.T) {
	t.Parallel()
	ours(t)
	if testing.Short() {
		t.Skip("stops a process for seconds")
	}
	for name, of := range map[string]func(p *pairOf) *worker.Agent{
		"target":    func(p *pairOf) *worker.Agent { return p.tgt },
		"initiator": func(p *pairOf) *worker.Agent { return p.ini },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := rails(t, 1000, 1000)
			p := onRails(t, a, b, "log", "info", "data_port", fmt.Sprintf("%d-%d", dataFrom, dataTo))
			const n, size = 16, 64 << 10
			mine, his := p.buffers(n * size)
			var set []*worker.Xfer
			for i := range uint64(n) {
				set = append(set, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*size, size), Remote: his.Span(i*size, size), Peer: "bob"}))
			}
			const stops = 2
			for range stops {
				for _, x := range set {
					x.Do(limit)
				}
				for _, x := range set {
					x.Post()
				}
				of(p).Stop()
				time.Sleep(3 * time.Second)
				of(p).Cont()
				for _, x := range set {
					require.Equal(t, nixlapi.Success, x.Wait(limit), "%s\n%s", p.ini.Output(), p.tgt.Output())
				}
			}
			fences := 0
			for _, text := range []string{p.ini.Output(), p.tgt.Output()} {
				for _, end := range []string{"peer lost", "session with a peer suspended"} {
					require.NotContains(t, text, end)
				}
				fences += strings.Count(text, "fencing a link")
			}
			t.Logf("%d fences", fences)
			require.LessOrEqual(t, fences, stops, "%s", p.ini.Output())
		})
	}
}

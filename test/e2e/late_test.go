package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

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
			down.cut("slow0")
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 1, 1), Mask: net.CIDRMask(24, 32)}}
			if strings.Contains(end, "without") {
				devices = "fast0,slow0" // an engine waits for an address only on an interface that devices names
				require.NoError(t, ha.nl.AddrDel(ha.link("slow0"), addr))
			}
			require.True(t, worker.Eventually(limit, func() bool { return !ha.carries("slow0") && !hb.carries("slow0") }))
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

			down.restore("slow0")
			if devices != "" {
				require.NoError(t, ha.nl.AddrAdd(ha.link("slow0"), addr))
			}
			says(t, p.ini.Worker, "rail joined", "/slow0")
			says(t, p.tgt.Worker, "rail joined", "/slow0")
			before := ha.sent("slow0")
			rounds := 0
			require.True(t, worker.Eventually(long, func() bool { // a prepared transfer uses the new rail once its link is proved
				rounds++
				a.Fill(uint64(seedC + rounds))
				x.Do(limit)
				b.Want(uint64(seedC + rounds))
				return ha.sent("slow0")-before > size/4
			}), "%s\n%s", p.ini.Output(), p.tgt.Output())
			require.Len(t, p.tgt.WaitNotifs(rounds, limit), rounds)

			fresh, there := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
			p.ini.Learn(p.tgt)
			before = ha.sent("slow0")
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

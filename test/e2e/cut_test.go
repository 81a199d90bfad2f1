package e2e

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// wires are the networks of twoHosts: their third byte is the place.
var wires = []string{"fast0", "slow0"}

// swallow sends all packets of a host on its wires to a card that nobody has, in silence, or to the other host again.
func (h *host) swallow(to *host, last byte, on bool) {
	h.T.Helper()
	for i, name := range wires {
		n := &netlink.Neigh{LinkIndex: h.Link(name).Attrs().Index, Family: unix.AF_INET, IP: net.IPv4(10, 77, byte(i), last), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99}}
		if !on {
			n.HardwareAddr, n.State = to.Link(name).Attrs().HardwareAddr, netlink.NUD_REACHABLE
		}
		require.NoError(h.T, h.NL.NeighSet(n))
	}
}

// sharers are the tasks that share a core now.
func sharers(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	require.NoError(t, err)
	var load float64
	_, err = fmt.Sscan(string(text), &load)
	require.NoError(t, err)
	return time.Duration(max(1, min(5, load/float64(runtime.NumCPU()))))
}

// TestCut: no packet arrives for four seconds, both ways or one way, while a transfer is in flight. It ends soon after the network is whole again. TCP itself
// would send again 2.2 s after that. Sessions, connections of a stopped process, and all bytes stay.
func TestCut(t *testing.T) {
	t.Parallel()
	const lasts, soon = 4 * time.Second, 300 * time.Millisecond
	for name, c := range map[string]struct {
		there, back bool
		devices     string
	}{"both ways": {true, true, "fast0"}, "there": {true, false, "fast0"}, "back": {false, true, "fast0"}, "two rails": {true, true, "fast0,slow0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			halfShort(t, nixlapi.Read, func(t *testing.T, op nixlapi.Op) {
				here, there, p := over(t, "devices", c.devices, "log", "info")
				a, b := p.buffers(8 << 20)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
				x.Do(limit)
				lose := func(on bool) {
					if c.there {
						here.swallow(there, 2, on)
					}
					if c.back {
						there.swallow(here, 1, on)
					}
				}
				a.Fill(seedA)
				b.Fill(seedB)
				lose(true)
				require.Equal(t, nixlapi.InProgress, x.Post())
				require.Equal(t, nixlapi.InProgress, x.Wait(lasts), "the time of the cut")
				lose(false)
				began := time.Now()
				require.Equal(t, nixlapi.Success, x.Wait(limit), "%s", p.ini.Output())
				took := time.Since(began)
				t.Logf("done %v after the cut", took)
				require.Less(t, took, testenv.Patient(soon*sharers(t)), "%s%s", p.ini.Output(), p.tgt.Output())
				map[nixlapi.Op]*worker.Buf{nixlapi.Read: a, nixlapi.Write: b}[op].Want(map[nixlapi.Op]uint64{nixlapi.Read: seedB, nixlapi.Write: seedA}[op])
				require.Len(t, p.tgt.WaitNotifs(2, limit), 2, "each once")
				says(t, p.ini.Worker, "control session resumed", "bob")
				require.NotContains(t, p.ini.Output(), "session with a peer suspended")
				exit(t, p.ini, p.tgt)
			})
		})
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		_, _, p := over(t, "devices", "fast0", "log", "debug")
		a, b := p.buffers(8 << 20)
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		p.tgt.Stop()
		require.Equal(t, nixlapi.InProgress, x.Post())
		require.Equal(t, nixlapi.InProgress, x.Wait(lasts), "the peer's kernel acknowledges")
		p.tgt.Cont()
		require.Equal(t, nixlapi.Success, x.Wait(limit))
		for _, line := range logged(p.ini.Worker) {
			require.False(t, strings.Contains(line, "does not answer") || strings.Contains(line, "fencing a link"), line)
		}
		exit(t, p.ini, p.tgt)
	})
}

// TestCutAddress: the target's address that the control connection leads to is replaced. The old one is silent, and the target has no way to say so. A transfer that
// begins then ends as soon as the initiator has tried the target's other address: of three, the fastest after 74 to 83 ms with a load of 9. Before TCP itself had sent
// again it took 282 to 443.
func TestCutAddress(t *testing.T) {
	t.Parallel()
	const soon = 150 * time.Millisecond
	halfShort(t, nixlapi.Read, func(t *testing.T, op nixlapi.Op) {
		fastest, output := limit, ""
		for range 3 {
			_, there, p := over(t, "log", "info")
			a, b := p.buffers(2 << 20)
			x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
			x.Do(limit)
			a.Fill(seedA)
			b.Fill(seedB)
			there.readdress("fast0", net.IPv4(10, 77, 0, 2), net.IPv4(10, 77, 0, 67))
			says(t, p.tgt.Worker, "10.77.0.2 of fast0 is gone, now 10.77.0.67")
			began := time.Now()
			x.Do(limit)
			fastest = min(fastest, time.Since(began))
			map[nixlapi.Op]*worker.Buf{nixlapi.Read: a, nixlapi.Write: b}[op].Want(map[nixlapi.Op]uint64{nixlapi.Read: seedB, nixlapi.Write: seedA}[op])
			require.Len(t, p.tgt.WaitNotifs(2, limit), 2, "each once")
			says(t, p.ini.Worker, "control session resumed", "bob")
			output = p.ini.Output() + p.tgt.Output()
			exit(t, p.ini, p.tgt)
		}
		t.Logf("done after %v", fastest)
		require.Less(t, fastest, testenv.Patient(soon), "%s", output)
	})
}

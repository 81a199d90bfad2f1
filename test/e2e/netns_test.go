package e2e

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

var errNotRoot = errors.New("network namespaces need root")

// twoHosts makes two machines with two wires between them, "fast0" and "slow0".
func twoHosts(t *testing.T) (a, b *host) {
	t.Helper()
	a, b = twoNamespaces(t)
	b.reboot("00000000-1111-2222-3333-444444444444")
	return a, b
}

// twoNamespaces makes the wires of twoHosts between two network namespaces of one host.
func twoNamespaces(t *testing.T) (a, b *host) {
	t.Helper()
	ours(t)
	a, b = newHost(t), newHost(t)
	for i, name := range []string{"fast0", "slow0"} {
		addr := func(last byte) *net.IPNet {
			return &net.IPNet{IP: net.IPv4(10, 77, byte(i), last), Mask: net.CIDRMask(24, 32)}
		}
		a.wire(b, name, addr(1), addr(2))
	}
	return a, b
}

// over starts an agent with the same options on each of twoHosts. The target polls.
func over(t *testing.T, opts ...string) (a, b *host, p *pairOf) {
	t.Helper()
	a, b = twoHosts(t)
	p = &pairOf{env: testenv.Need(t), ini: a.start("alice", params(opts...)), tgt: b.start("bob", params(opts...))}
	p.tgt.Polling(true)
	return a, b, p
}

// TestTwoHosts: bytes and notifications go over the wires, in both directions.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	ha, hb, p := over(t, "log", "info")
	a, b := p.buffers(size)
	before := ha.sent("fast0") + ha.sent("slow0")
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	x.Do(limit)
	require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("w")}}, p.tgt.WaitNotifs(1, limit))
	b.Want(seedA)
	require.Greater(t, ha.sent("fast0")+ha.sent("slow0")-before, uint64(size))

	b.Fill(seedB)
	before = hb.sent("fast0") + hb.sent("slow0")
	y := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("r")})
	y.Do(limit)
	require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("r")}}, p.tgt.WaitNotifs(1, limit))
	a.Want(seedB)
	require.Greater(t, hb.sent("fast0")+hb.sent("slow0")-before, uint64(size))

	p.tgt.Learn(p.ini)
	require.Nil(t, p.tgt.GenNotifsAsync("alice", "back ", 1000).Wait().Err)
	got := p.ini.WaitNotifs(1000, limit)
	require.Len(t, got, 1000)
	require.Equal(t, worker.Seq("back ", 999), got[999].Msg)
	says(t, p.ini.Worker, "peer connected", "peer=bob", "rails=tcp/fast0,tcp/slow0", "links=2", "session=initiator")
	require.NoError(t, p.ini.Exit())
	require.NoError(t, p.tgt.Exit())
}

// TestTwoHostsKill: the target's process on the other host is killed, and the initiator learns it.
func TestTwoHostsKill(t *testing.T) {
	t.Parallel()
	_, _, p := over(t)
	a, b := p.buffers(64 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
	loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
	require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
	p.tgt.Kill()
	began := time.Now()
	require.True(t, loop.Wait().Status.Failed())
	require.Less(t, time.Since(began), 2*time.Second)
	expectLost(t, p.ini, x)
	says(t, p.ini.Worker, "peer lost", "peer=bob")
}

// TestWireCut: an interface goes down at either end, without a close of the connections. The transfer in flight ends with
// an error that does not make the agent forget the peer. When the interface is up, the next posts connect again.
func TestWireCut(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	for _, end := range []string{"here", "there"} {
		t.Run(end, func(t *testing.T) {
			ha, hb, p := over(t, "peer_timeout", timeout.String(), "connect_timeout", timeout.String(), "devices", "fast0")
			a, b := p.buffers(64 << 20)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
			cut := map[string]*host{"here": ha, "there": hb}[end]
			cut.cut("fast0")
			began := time.Now()
			require.True(t, loop.Wait().Status.Failed())
			require.Less(t, time.Since(began), testenv.Patient(timeout+2*time.Second))
			says(t, p.ini.Worker, "session with a peer suspended", "peer=bob", "silent", "/fast0")
			says(t, p.ini.Worker, "transfer failed", "peer=bob", "NIXL_ERR_BACKEND")
			if s := x.Post(); s == nixlapi.InProgress {
				s = x.Wait(limit)
				require.True(t, s.Failed())
			}
			require.True(t, p.ini.Knows("bob"))
			cut.restore("fast0")
			a.Fill(seedC)
			require.True(t, worker.Eventually(limit, func() bool {
				s := x.Post()
				if s == nixlapi.InProgress {
					s = x.Wait(limit)
				}
				return s == nixlapi.Success
			}), "%s", p.ini.Output())
			b.Want(seedC)
			require.NoError(t, x.Release())
			require.NoError(t, p.ini.Exit())
		})
	}
}

// TestDevices: option devices chooses a wire by a name, a glob or an exclusion. The other wire carries no data.
func TestDevices(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	for _, c := range []struct{ devices, used, idle string }{
		{"fast*", "fast0", "slow0"},
		{"slow0", "slow0", "fast0"},
		{"!fast*", "slow0", "fast0"},
		{"*0,!slow?", "fast0", "slow0"},
	} {
		t.Run(c.devices, func(t *testing.T) {
			ha, _, p := over(t, "devices", c.devices, "log", "info")
			a, b := p.buffers(size)
			used, idle := ha.sent(c.used), ha.sent(c.idle)
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
			b.Want(seedA)
			require.Greater(t, ha.sent(c.used)-used, uint64(size))
			require.Less(t, ha.sent(c.idle)-idle, uint64(4096), "more than the kernel's own packets on %s", c.idle)
			says(t, p.ini.Worker, "peer connected", "/"+c.used)
		})
	}
}

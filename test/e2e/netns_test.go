package e2e

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// twoHosts makes two machines with two wires between them, "fast0" and "slow0".
func twoHosts(t *testing.T) (a, b *host) {
	t.Helper()
	a, b = twoNamespaces(t)
	b.Reboot("00000000-1111-2222-3333-444444444444")
	return a, b
}

// twoNamespaces makes the wires of twoHosts between two network namespaces of one host.
func twoNamespaces(t *testing.T) (a, b *host) {
	t.Helper()
	ours(t)
	return hosts(t, 77, "fast0", "slow0")
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
	before := ha.Sent("fast0") + ha.Sent("slow0")
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	x.Do(limit)
	require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("w")}}, p.tgt.WaitNotifs(1, limit))
	b.Want(seedA)
	require.Greater(t, ha.Sent("fast0")+ha.Sent("slow0")-before, uint64(size))

	b.Fill(seedB)
	before = hb.Sent("fast0") + hb.Sent("slow0")
	y := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("r")})
	y.Do(limit)
	require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("r")}}, p.tgt.WaitNotifs(1, limit))
	a.Want(seedB)
	require.Greater(t, hb.Sent("fast0")+hb.Sent("slow0")-before, uint64(size))

	p.tgt.Learn(p.ini)
	require.Nil(t, p.tgt.GenNotifsAsync("alice", "back ", 1000).Wait().Err)
	got := p.ini.WaitNotifs(1000, limit)
	require.Len(t, got, 1000)
	require.Equal(t, worker.Seq("back ", 999), got[999].Msg)
	says(t, p.ini.Worker, "peer connected", "peer=bob", "rails=tcp/fast0,tcp/slow0", "links=2", "session=initiator")
	exit(t, p.ini, p.tgt)
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
			cut.Cut("fast0")
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
			cut.Restore("fast0")
			a.Fill(seedC)
			require.True(t, worker.Eventually(limit, func() bool {
				s := x.Try(limit)
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
			used, idle := ha.Sent(c.used), ha.Sent(c.idle)
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
			b.Want(seedA)
			require.Greater(t, ha.Sent(c.used)-used, uint64(size))
			require.Less(t, ha.Sent(c.idle)-idle, uint64(4096), "more than the kernel's own packets on %s", c.idle)
			says(t, p.ini.Worker, "peer connected", "/"+c.used)
		})
	}
}

// behindBridge joins two hosts by two bridges in a third namespace, with a wire between the bridges. The hosts send one packet at a time, as
// through a card without offloads: a bridge passes packets that are still to be cut, whatever their size.
func behindBridge(t *testing.T) (a, b, middle *host) {
	t.Helper()
	ours(t)
	a, b, middle = newHost(t), newHost(t), newHost(t)
	b.Reboot("00000000-1111-2222-3333-444444444444")
	require.NoError(t, middle.NL.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1"}))
	for i, h := range []*host{a, b} {
		bridge, port, wire := fmt.Sprint("bridge", i), fmt.Sprint("port", i), fmt.Sprint("wire", i)
		skip.OrFail(t, middle.NL.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}))
		require.NoError(t, middle.NL.LinkSetUp(middle.Link(bridge)))
		require.NoError(t, middle.NL.LinkSetMasterByIndex(middle.Link(wire), middle.Link(bridge).Attrs().Index))
		require.NoError(t, middle.NL.LinkSetUp(middle.Link(wire)))
		require.NoError(t, middle.NL.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: middle.Link(bridge).Attrs().Index},
			PeerName: "fast0", PeerNamespace: netlink.NsFd(h.NS)}))
		require.NoError(t, middle.NL.LinkSetUp(middle.Link(port)))
		require.NoError(t, h.NL.LinkSetGSOMaxSegs(h.Link("fast0"), 1))
		h.Up("fast0", &net.IPNet{IP: net.IPv4(10, 77, 0, byte(1+i)), Mask: net.CIDRMask(24, 32)})
	}
	require.True(t, worker.Eventually(lost, func() bool { return a.Carries("fast0") && b.Carries("fast0") }), "the bridges do not come up")
	a.Reach(b.Host, net.IPv4(10, 77, 0, 2))
	return a, b, middle
}

// shrink makes the bridges drop larger packets, in silence. A smaller MTU of a port to a host would be an error of sending there.
func shrink(t *testing.T, middle *host, mtu int) {
	t.Helper()
	for _, wire := range []string{"wire0", "wire1"} {
		require.NoError(t, middle.NL.LinkSetMTU(middle.Link(wire), mtu))
	}
}

// TestMTU: a bridge between two hosts drops packets that their interfaces may send, without a word. The error of the transfer says so, with
// the addresses of both ends, though small transfers work.
func TestMTU(t *testing.T) {
	t.Parallel()
	a, b, middle := behindBridge(t)
	opts := []string{"xfer_timeout", "6s", "cancel_timeout", "500ms", "peer_timeout", "60s", "devices", "fast0", "log", "info"}
	p := &pairOf{env: testenv.Need(t), ini: a.start("alice", params(opts...)), tgt: b.start("bob", params(opts...))}
	p.tgt.Polling(true)
	from, to := p.buffers(1 << 20)
	small := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.Span(0, 100), Remote: to.Span(0, 100), Peer: "bob"})
	large := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "bob"})
	small.Do(limit)
	shrink(t, middle, 1300)
	small.Do(limit)
	require.False(t, large.Post().Failed())
	require.True(t, large.Wait(limit).Failed())
	line := says(t, p.ini.Worker, "transfer timed out", "code=GR-1042", "packets of up to 14")
	require.Contains(t, line, "do not arrive, and smaller ones did: check the MTU between 10.77.0.1:")
	require.Contains(t, line, "10.77.0.2:")
	says(t, p.ini.Worker, "timeout report: link", "packets=", "path MTU 1500")
	shrink(t, middle, 1500)
	require.True(t, worker.Eventually(lost, func() bool { return large.Post() != nixlapi.InProgress || large.Wait(limit) == nixlapi.Success }))
	to.Want(seedA)
}

// TestMTUOfControl: the same bridge is there from the beginning, with so small packets that no control connection is made.
func TestMTUOfControl(t *testing.T) {
	t.Parallel()
	a, b, middle := behindBridge(t)
	opts := []string{"connect_timeout", "5s", "xfer_timeout", "20s", "devices", "fast0", "log", "info"}
	p := &pairOf{env: testenv.Need(t), ini: a.start("alice", params(opts...)), tgt: b.start("bob", params(opts...))}
	p.tgt.Polling(true)
	shrink(t, middle, 500)
	from, to := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "bob"})
	if x.Post() == nixlapi.InProgress {
		require.True(t, x.Wait(limit).Failed())
	}
	says(t, p.ini.Worker, "check the MTU between 10.77.0.1:")
	require.False(t, strings.Contains(p.ini.Output(), "peer connected"))
}

// block drops the packets that the host sends from these TCP ports to an address. A firewall between the hosts has the
// same effect on connections to these ports.
func (h *host) block(to string, first, last uint16) {
	h.T.Helper()
	const blackhole = 6 // FR_ACT_BLACKHOLE
	r := netlink.NewRule()
	r.Family, r.IPProto, r.Type, r.Priority = unix.AF_INET, unix.IPPROTO_TCP, blackhole, 100
	r.Sport = netlink.NewRulePortRange(first, last)
	_, r.Dst, _ = net.ParseCIDR(to)
	require.NoError(h.T, h.NL.RuleAdd(r))
}

// blockAllBut lets only one range of ports through.
func (h *host) blockAllBut(to string, first, last uint16) {
	h.T.Helper()
	h.block(to, 1, first-1)
	h.block(to, last+1, 65534) // the largest port that the kernel takes in a rule
}

// TestFirewall: a firewall lets only the control port through. The transfer fails within connect_timeout. Both logs name
// the addresses between which nothing came through, and the options to set.
func TestFirewall(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	ha, hb := twoHosts(t)
	hb.blockAllBut("0.0.0.0/0", 7000, 7000)
	p := &pairOf{env: testenv.Need(t), ini: ha.start("alice", params("connect_timeout", timeout.String(), "log", "info", "devices", "fast0")),
		tgt: hb.start("bob", params("control_port", "7000", "connect_timeout", timeout.String(), "log", "info", "devices", "fast0"))}
	p.tgt.Polling(true)
	a, b := p.buffers(1 << 20)
	began := time.Now()
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	s := x.Try(limit)
	require.True(t, s.Failed(), "%v", s)
	require.Less(t, time.Since(began), testenv.Patient(timeout+2*time.Second))
	line := says(t, p.ini.Worker, "session with a peer suspended", "peer=bob", "/fast0 (10.77.0.1:", " to 10.77.0.2:", "a firewall?", "data_port", "connect_timeout")
	require.NotContains(t, line, "{")
	says(t, p.ini.Worker, "transfer failed", "peer=bob", "a firewall?")
	says(t, p.tgt.Worker, "no data connection of a peer has come in", "peer=alice", "/fast0 (10.77.0.2:", "a firewall?", "data_port")
	require.NotContains(t, p.ini.Output(), "peer connected")
	require.NotContains(t, p.tgt.Output(), "peer connected")
	require.True(t, p.ini.Knows("bob"))
}

// TestFirewallOfTwoLines: a firewall has to let only control_port and data_port through.
func TestFirewallOfTwoLines(t *testing.T) {
	t.Parallel()
	ha, hb := twoHosts(t)
	hb.blockAllBut("0.0.0.0/0", 7000, 7009)
	p := &pairOf{env: testenv.Need(t), ini: ha.start("alice", params("log", "info")),
		tgt: hb.start("bob", params("control_port", "7000", "data_port", "7001-7009", "log", "info"))}
	p.tgt.Polling(true)
	a, b := p.buffers(1 << 20)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
	says(t, p.ini.Worker, "peer connected", "/fast0", "/slow0")
	says(t, p.tgt.Worker, "peer connected", "/fast0", "/slow0", "session=target")
}

// TestDataPort: an engine listens only on control_port and data_port, on all rails. Two agents of one host have a range
// each.
func TestDataPort(t *testing.T) {
	t.Parallel()
	env := ours(t)
	h, _ := twoHosts(t)
	opts := func(control, data string) option {
		return params("control_port", control, "data_port", data, "log", "info", "devices", "lo,fast0,slow0", "qps_per_rail", "2")
	}
	p := &pairOf{env: env, ini: h.start("alice", opts("7000", "7100-7109")), tgt: h.start("bob", opts("7001", "7200-7209"))}
	p.tgt.Polling(true)
	a, b := p.buffers(1 << 20)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
	says(t, p.ini.Worker, "peer connected", "links=2")
	for w, within := range map[*worker.Agent][2]uint16{p.ini: {7100, 7109}, p.tgt: {7200, 7209}} {
		data := 0
		for _, l := range listening(t, w.Pid()) {
			if port := l.Port(); port == 7000 || port == 7001 {
				continue
			}
			require.True(t, within[0] <= l.Port() && l.Port() <= within[1], "%v", l)
			data++
		}
		require.Positive(t, data)
	}
}

// TestDataPortShared: one data_port serves a rail with all its peers. A second engine on the port is refused, and the error names the
// option. When the first engine has gone, the port is free.
func TestDataPortShared(t *testing.T) {
	t.Parallel()
	env := ours(t)
	h := newHost(t)
	opts := params("provider", "tcp", "data_port", "7200", "devices", "lo")
	bob := h.start("bob", opts)
	b := bob.Buffer(1<<20, seedB)
	for seed, name := range map[uint64]string{seedA: "alice", seedC: "carol"} {
		w := h.start(name, params("provider", "tcp", "devices", "lo"))
		src := w.Buffer(1<<20, seed)
		w.Learn(bob)
		w.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: src.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
		b.Want(seed)
	}
	second := h.worker(worker.Options{Env: env})
	refused(t, second, env, "dave", opts)
	says(t, second, "level=ERROR", "option data_port=7200-7200", "wider range")
	require.NoError(t, bob.Exit())
	works(t, second, env, opts)
}

// wiretap receives all packets of a machine, and looks for texts in them.
type wiretap struct {
	fd   int
	done chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	bytes int
	found map[string]bool
}

func (h *host) tap(texts map[string][]byte) *wiretap {
	h.T.Helper()
	w := &wiretap{done: make(chan struct{}), found: map[string]bool{}}
	var err error
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the network's order
	h.In(func() { w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all) })
	require.NoError(h.T, err)
	require.NoError(h.T, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20))
	require.NoError(h.T, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 10_000}))
	w.wg.Go(func() { w.run(texts) })
	return w
}

func (w *wiretap) run(texts map[string][]byte) {
	b := make([]byte, 128<<10)
	for {
		n, err := unix.Read(w.fd, b)
		if err != nil {
			select {
			case <-w.done:
				return
			default:
				continue
			}
		}
		w.mu.Lock()
		w.bytes += n
		for name, text := range texts {
			if bytes.Contains(b[:n], text) {
				w.found[name] = true
			}
		}
		w.mu.Unlock()
	}
}

// end waits until what was sent has been looked at.
func (w *wiretap) end() (bytes int, found map[string]bool) {
	close(w.done)
	w.wg.Wait()
	_ = unix.Close(w.fd)
	return w.bytes, w.found
}

// TestEncryption: with encryption=on bytes and notifications arrive, and the wires between two machines have none of them. With
// encryption=off they have them all.
func TestEncryption(t *testing.T) {
	t.Parallel()
	const size = 5<<20 + 77
	for _, value := range []string{"off", "on"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			ha, _, p := over(t, "provider", "tcp", "encryption", value, "log", "info")
			texts := map[string][]byte{"WRITE": make([]byte, 64), "READ": make([]byte, 64), "notification": []byte("attack at dawn, says the notification")}
			pattern.Fill(texts["WRITE"], seedA, 3<<20)
			pattern.Fill(texts["READ"], seedB, 3<<20)
			w := ha.tap(texts)
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: texts["notification"]}).Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				moved := uint64(seedA)
				if op == nixlapi.Read {
					moved = seedB
				}
				a.Want(moved)
				b.Want(moved)
			})
			n, found := w.end()
			require.Greater(t, n, 2*size, "the tap saw the wires")
			for name := range texts {
				require.Equal(t, value == "off", found[name], "%s on the wire", name)
			}
			if value == "on" {
				says(t, p.ini.Worker, "peer connected", " encrypted")
			} else {
				require.NotContains(t, p.ini.Output(), " encrypted")
			}
		})
	}
}

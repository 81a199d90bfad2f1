package e2e

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// block drops the packets that the host sends from these TCP ports to an address. A firewall between the hosts has the
// same effect on connections to these ports.
func (h *host) block(to string, first, last uint16) {
	h.t.Helper()
	const blackhole = 6 // FR_ACT_BLACKHOLE
	r := netlink.NewRule()
	r.Family, r.IPProto, r.Type, r.Priority = unix.AF_INET, unix.IPPROTO_TCP, blackhole, 100
	r.Sport = netlink.NewRulePortRange(first, last)
	_, r.Dst, _ = net.ParseCIDR(to)
	require.NoError(h.t, h.nl.RuleAdd(r))
}

// blockAllBut lets only one range of ports through.
func (h *host) blockAllBut(to string, first, last uint16) {
	h.t.Helper()
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
	s := x.Post()
	if s == nixlapi.InProgress {
		s = x.Wait(limit)
	}
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
	h, far := newHost(t), newHost(t)
	for i, name := range []string{"fast0", "slow0"} {
		addr := func(last byte) *net.IPNet {
			return &net.IPNet{IP: net.IPv4(10, 77, byte(i), last), Mask: net.CIDRMask(24, 32)}
		}
		h.wire(far, name, addr(1), addr(2))
	}
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

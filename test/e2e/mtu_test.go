package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// behindBridge joins two hosts by two bridges in a third namespace, with a wire between the bridges. The hosts send one packet at a time, as
// through a card without offloads: a bridge passes packets that are still to be cut, whatever their size.
func behindBridge(t *testing.T) (a, b, middle *host) {
	t.Helper()
	ours(t)
	a, b, middle = newHost(t), newHost(t), newHost(t)
	b.reboot("00000000-1111-2222-3333-444444444444")
	require.NoError(t, middle.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1"}))
	for i, h := range []*host{a, b} {
		bridge, port, wire := fmt.Sprint("bridge", i), fmt.Sprint("port", i), fmt.Sprint("wire", i)
		skip.OrFail(t, middle.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}))
		require.NoError(t, middle.nl.LinkSetUp(middle.link(bridge)))
		require.NoError(t, middle.nl.LinkSetMasterByIndex(middle.link(wire), middle.link(bridge).Attrs().Index))
		require.NoError(t, middle.nl.LinkSetUp(middle.link(wire)))
		require.NoError(t, middle.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: middle.link(bridge).Attrs().Index},
			PeerName: "fast0", PeerNamespace: netlink.NsFd(h.ns)}))
		require.NoError(t, middle.nl.LinkSetUp(middle.link(port)))
		require.NoError(t, h.nl.LinkSetGSOMaxSegs(h.link("fast0"), 1))
		h.up("fast0", &net.IPNet{IP: net.IPv4(10, 77, 0, byte(1+i)), Mask: net.CIDRMask(24, 32)})
	}
	require.True(t, worker.Eventually(lost, func() bool { return a.carries("fast0") && b.carries("fast0") }), "the bridges do not come up")
	a.reach(b, net.IPv4(10, 77, 0, 2))
	return a, b, middle
}

// shrink makes the bridges drop larger packets, in silence. A smaller MTU of a port to a host would be an error of sending there.
func shrink(t *testing.T, middle *host, mtu int) {
	t.Helper()
	for _, wire := range []string{"wire0", "wire1"} {
		require.NoError(t, middle.nl.LinkSetMTU(middle.link(wire), mtu))
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

package e2e

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestManyInterfaces: a host of containers has hundreds of interfaces. An agent asks the kernel for all of them a few times, not once for each.
func TestManyInterfaces(t *testing.T) {
	t.Parallel()
	const pairs, most = 200, 40 // 6 dumps on a quiet machine; each change meanwhile costs two
	ha, hb := twoHosts(t)
	for i := range pairs {
		name := fmt.Sprintf("c%d", i)
		require.NoError(t, ha.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
		require.NoError(t, ha.nl.AddrAdd(ha.link(name), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 80, byte(i), 1), Mask: net.CIDRMask(24, 32)}}))
		require.NoError(t, ha.nl.LinkSetUp(ha.link(name)))
	}
	a, b := ha.start("alice", params("log", "debug", "devices", "fast0")), hb.start("bob", params("devices", "fast0"))
	said := regexp.MustCompile(`msg="network interfaces".* count=(\d+) dumps=(\d+)`)
	var m []string
	require.True(t, worker.Eventually(limit, func() bool { m = said.FindStringSubmatch(a.Output()); return m != nil }), "%s", a.Output())
	count, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, count, 2*pairs)
	dumps, err := strconv.Atoi(m[2])
	require.NoError(t, err)
	require.LessOrEqual(t, dumps, most)
	require.Positive(t, dumps)
	src, dst := a.Buffer(1<<20, seedA), b.Buffer(1<<20, seedB)
	a.Learn(b)
	a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: src.All(), Remote: dst.All(), Peer: "bob"}).Do(limit)
	dst.Want(seedA)
}

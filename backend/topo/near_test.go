package topo_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/backend/topo/topotest"
)

func TestNear(t *testing.T) {
	dgx, server := read(t, "dgx-h100"), read(t, "server")
	for _, c := range []struct {
		m    *topo.Machine
		numa int
		dev  string
		want int
	}{
		{dgx, 0, "mlx5_0", topo.SameNode},
		{dgx, 1, "mlx5_0", topo.OtherNodes},
		{dgx, -1, "mlx5_0", topo.NoNode},
		{dgx, 1, "enp170s0f0np0", topo.SameNode},
		{dgx, 0, "docker0", topo.NoNode},
		{dgx, 0, "nosuch", topo.NoNode},
		{server, 1, "bond0", topo.SameNode},
		{server, 0, "bond0.7", topo.OtherNodes},
		{server, 0, "lo", topo.NoNode},
	} {
		require.Equal(t, c.want, c.m.Near(c.numa, c.dev), "%d %s", c.numa, c.dev)
	}
	require.Less(t, topo.SameNode, topo.NoNode)
	require.Less(t, topo.NoNode, topo.OtherNodes)
}

func TestBetween(t *testing.T) {
	path := func(s string) topo.PCIPath { return strings.Split(s, " ") }
	nic := path("pci0000:15 0000:15:01.0 0000:16:00.0 0000:17:00.0 0000:18:00.0")
	for _, c := range []struct {
		with topo.PCIPath
		want topo.Closeness
	}{
		{nic, topo.SameSlot},
		{path("pci0000:15 0000:15:01.0 0000:16:00.0 0000:17:00.0 0000:18:00.1"), topo.SameSlot},
		{path("pci0000:15 0000:15:01.0 0000:16:00.0 0000:17:02.0 0000:1b:00.0"), topo.SameSwitch},
		{path("pci0000:15 0000:15:01.0 0000:16:00.0 0000:17:02.0 0000:1b:00.0 0000:1c:01.0 0000:1d:00.0"), topo.SamePort},
		{path("pci0000:15 0000:15:03.0 0000:20:00.0"), topo.SameRoot},
		{path("pci0000:80 0000:80:01.0 0000:82:00.0"), topo.OtherRoot},
		{nil, topo.UnknownPath},
		{path("0000:18:00.0"), topo.UnknownPath},
	} {
		require.Equal(t, c.want, topo.Between(nic, c.with), "%v", c.with)
		require.Equal(t, c.want, topo.Between(c.with, nic), "%v", c.with)
		require.NotContains(t, c.want.String(), "Closeness")
	}
	m := read(t, "p5-48xlarge")
	require.Equal(t, topo.SameSwitch, topo.Between(m.Device("rdmap79s0").PCI, m.Device("rdmap82s0").PCI))
	require.Equal(t, topo.OtherRoot, topo.Between(m.Device("rdmap79s0").PCI, m.Device("rdmap96s0").PCI))
}

func TestOrder(t *testing.T) {
	names := []string{"eth10", "eth2", "lo", "eth2a", "eth02", "ib", "ib0", "eth2.7", "mlx5_10", "mlx5_9"}
	slices.SortFunc(names, topo.Natural)
	require.Equal(t, []string{"eth02", "eth2", "eth2.7", "eth2a", "eth10", "ib", "ib0", "lo", "mlx5_9", "mlx5_10"}, names)
	paths := []topo.PCIPath{nil, {"r", "10000:01:00.0"}, {"r", "0000:af:00.1"}, {"r", "0000:af:00.0"}, {"q", "0000:3b:00.0"}}
	slices.SortFunc(paths, topo.PCIPath.Compare)
	require.Equal(t, []topo.PCIPath{{"q", "0000:3b:00.0"}, {"r", "0000:af:00.0"}, {"r", "0000:af:00.1"}, {"r", "10000:01:00.0"}, nil}, paths)
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		patterns string
		number   int
		names    string
		want     topo.Verdict
		may      bool
	}{
		{"", 0, "eth0", topo.Unsaid, true},
		{"eth0", 0, "eth0", topo.Named, true},
		{"eth*", 0, "eth0", topo.Named, true},
		{"ib*", 0, "eth0", topo.Excluded, false},
		{"ib*,eth0", 0, "eth0", topo.Named, true},
		{"!eth0", 0, "eth0", topo.Excluded, false},
		{"^eth0", 0, "eth0", topo.Excluded, false},
		{"!ib*", 0, "eth0", topo.Unsaid, true},
		{"eth*,^eth0", 0, "eth0", topo.Excluded, false},
		{"rdmap0", 0, "rdmap0-rdm,rdmap0", topo.Named, true},
		{"#0", 0, "eth0", topo.Named, true},
		{"#1", 0, "eth0", topo.Excluded, true},
		{"#1,#0", 0, "eth0", topo.Named, true},
		{"!#0", 0, "eth0", topo.Excluded, true},
		{"!#1", 0, "eth0", topo.Unsaid, true},
		{"#0", -1, "lo", topo.Excluded, true},
		{"#0,!eth*", 0, "eth0", topo.Excluded, false},
		{"lo,#1", 0, "eth0", topo.Excluded, true},
	} {
		ps, err := topo.ParsePatterns(strings.FieldsFunc(c.patterns, func(r rune) bool { return r == ',' }))
		require.NoError(t, err)
		names := strings.Split(c.names, ",")
		require.Equal(t, c.want, ps.Judge(c.number, names...), "%s of %s", c.patterns, c.names)
		require.Equal(t, c.may, ps.May(names...), "%s of %s", c.patterns, c.names)
	}
	for _, bad := range []string{"", "!", "^", "[x", "#", "#x", "!#-1", "#99999"} {
		_, err := topo.ParsePatterns([]string{"eth0", bad})
		require.Error(t, err, bad)
	}
}

// A GPU's address gives its path and its distance from a device.
func TestPathOf(t *testing.T) {
	sys := topotest.Parse(t, `
gpu a pci=pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0
gpu b pci=pci0000:c0/0000:c0:01.0/0000:c1:00.0
rdma mlx5_0 pci=pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0
rdma rxe0 parent=eth0`)
	a, b := topo.PathOf(sys, "0000:18:00.0"), topo.PathOf(sys, "0000:c1:00.0")
	require.Equal(t, "0000:18:00.0", a.Addr())
	require.Len(t, a, 5)
	require.Equal(t, topo.SameSwitch, topo.Between(a, topo.RDMAPath(sys, "infiniband", "mlx5_0")))
	require.Equal(t, topo.OtherRoot, topo.Between(b, topo.RDMAPath(sys, "infiniband", "mlx5_0")))
	require.Nil(t, topo.PathOf(sys, "0000:55:00.0"))
	require.Nil(t, topo.RDMAPath(sys, "infiniband", "rxe0"))
	require.Nil(t, topo.RDMAPath(sys, "infiniband", "nosuch"))
}

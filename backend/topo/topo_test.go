package topo_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/test/topotest"
)

func read(t *testing.T, name string) *topo.Machine {
	t.Helper()
	return topotest.Read(t, "testdata/"+name+".txt")
}

func TestDGX(t *testing.T) {
	m := read(t, "dgx-h100")
	require.Len(t, m.RDMA, 10)
	require.Equal(t, topo.RDMA{Name: "mlx5_0", Class: "infiniband", Nets: []string{"ibp24s0"}, State: "ACTIVE", Mbps: 400_000,
		Link: "InfiniBand", NUMA: 0, Driver: "mlx5_core",
		PCI: topo.PCIPath{"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"}}, *m.Device("mlx5_0"))
	require.Equal(t, "mlx5_11", m.RDMA[9].Name, "counted, not spelt")
	storage := m.Device("mlx5_7")
	require.Equal(t, []any{"Ethernet", 200_000, 1}, []any{storage.Link, storage.Mbps, storage.NUMA})
	require.Equal(t, storage, m.RDMAOf("enp170s0f0np0"))
	require.Nil(t, m.RDMAOf("eno3"))

	require.Equal(t, topo.Net{Name: "docker0", Index: 20, OperState: "up", Carrier: 1, Mbps: 10_000, MTU: 1500, NUMA: -1,
		Virtual: true, Bridge: true, Over: []string{"veth1c2d3e4"}}, *m.Net("docker0"))
	require.Equal(t, "docker0", m.Net("veth1c2d3e4").PortOf)
	ib := m.Net("ibp24s0")
	require.Equal(t, []any{400_000, 4092, "0000:18:00.0", 0, "mlx5_core", "pci", false, true},
		[]any{ib.Mbps, ib.MTU, ib.PCI.Addr(), ib.NUMA, ib.Driver, ib.Bus, ib.Virtual, ib.Up()})
	bmc := m.Net("bmc_redfish0")
	require.Equal(t, []any{"usb", "cdc_ether", -1, "0000:00:14.0"}, []any{bmc.Bus, bmc.Driver, bmc.Mbps, bmc.PCI.Addr()})
	require.False(t, m.Net("ens6f1").Up())
	require.True(t, m.Net("lo").Loopback && m.Net("lo").Virtual && m.Net("lo").Up())
	require.Nil(t, m.Net("nosuch"))
}

// The machine that runs the test.
func TestHere(t *testing.T) {
	if _, err := os.Stat("/sys/class/net/lo"); err != nil {
		t.Skip(err)
	}
	m := topo.Read(os.DirFS("/sys"))
	lo := m.Net("lo")
	require.NotNil(t, lo)
	require.True(t, lo.Loopback && lo.Virtual)
	require.Positive(t, lo.MTU)
	for _, n := range m.Nets() {
		_, err := os.Stat("/sys/class/net/" + n.Name + "/device")
		require.Equal(t, err != nil, n.Virtual, n.Name)
		if n.Bus == "pci" || n.Bus == "virtio" && n.PCI != nil {
			_, err := os.Stat(filepath.Join("/sys/bus/pci/devices", n.PCI.Addr()))
			require.NoError(t, err, n.Name)
		}
	}
}

// Odd trees: an empty tree, no links, links in circles or out of the tree, files without numbers.
func TestOddTrees(t *testing.T) {
	require.Empty(t, topo.Read(fstest.MapFS{}).Nets())
	require.Empty(t, topo.Read(fstest.MapFS{}).RDMA)
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	link := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s), Mode: os.ModeSymlink} }
	m := topo.Read(fstest.MapFS{
		"class/net/bonding_masters":            file("bond0\n"),
		"class/net/a/device/uevent":            file("DRIVER=x\nPCI_SLOT_NAME=0000:3b:00.1\n"),
		"class/net/a/device/numa_node":         file("1\n"),
		"class/net/a/speed":                    file("fast\n"),
		"class/net/b/device":                   link("../b/device"),
		"class/net/c/device":                   link("../../../../../etc"),
		"class/net/d/device":                   link("/etc"),
		"class/net/e/device":                   link("../nosuch"),
		"class/infiniband/rxe0/parent":         file("a\n"),
		"class/infiniband/rxe0/ports/1/state":  file("1: DOWN"),
		"class/infiniband/rxe0/ports/2/state":  file("4: ACTIVE"),
		"class/infiniband/rxe0/ports/2/rate":   file("2.5 Gb/sec (1X SDR)"),
		"class/infiniband/rxe1/ports/1/rate":   file("many"),
		"class/infiniband/rxe1/ports/10/state": file(""),
	})
	require.Len(t, m.Nets(), 5)
	a := m.Net("a")
	require.Equal(t, []any{topo.PCIPath{"0000:3b:00.1"}, 1, -1, false}, []any{a.PCI, a.NUMA, a.Mbps, a.Virtual})
	for _, name := range []string{"b", "c", "d", "e"} {
		require.True(t, m.Net(name).Virtual, name)
	}
	rxe := m.Device("rxe0")
	require.Equal(t, []any{"ACTIVE", 2500, []string{"a"}}, []any{rxe.State, rxe.Mbps, rxe.Nets})
	require.Equal(t, []any{"", -1}, []any{m.Device("rxe1").State, m.Device("rxe1").Mbps})
}

func TestNodes(t *testing.T) {
	nodes := topo.Nodes(topotest.FS(t, "testdata/dgx-h100.txt"))
	require.Len(t, nodes, 2)
	for i, n := range nodes {
		require.Equal(t, i, n.ID)
		require.Len(t, n.CPUs, 112)
	}
	require.Equal(t, []int{0, 55, 112, 167}, []int{nodes[0].CPUs[0], nodes[0].CPUs[55], nodes[0].CPUs[56], nodes[0].CPUs[111]})
	require.Equal(t, 56, nodes[1].CPUs[0])

	for _, c := range []struct {
		text string
		want []topo.Node
	}{
		{"", nil},
		{"node 0 cpus=0", []topo.Node{{ID: 0, CPUs: []int{0}}}},
		{"node 10 cpus=4-5\nnode 2 cpus=0,2-3\nnode 3 cpus=", []topo.Node{{ID: 2, CPUs: []int{0, 2, 3}}, {ID: 10, CPUs: []int{4, 5}}}}, // node 3 has only memory
		{"node 0 cpus=x-1,7,5-4", []topo.Node{{ID: 0, CPUs: []int{7}}}},
	} {
		require.Equal(t, c.want, topo.Nodes(topotest.Parse(t, c.text)), c.text)
	}
}

func TestNode(t *testing.T) {
	dgx, server := read(t, "dgx-h100"), read(t, "server")
	for _, c := range []struct {
		m    *topo.Machine
		dev  string
		want int
	}{
		{dgx, "mlx5_0", 0}, {dgx, "enp170s0f0np0", 1}, {dgx, "docker0", -1}, {dgx, "nosuch", -1}, {server, "bond0", 1}, {server, "bond0.7", 1}, {server, "lo", -1},
	} {
		require.Equal(t, c.want, c.m.Node(c.dev), c.dev)
	}
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

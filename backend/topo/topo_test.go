package topo_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/backend/topo/topotest"
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

package sketch_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/backend/topo/sketch"
)

func TestParse(t *testing.T) {
	sys, err := sketch.Parse(`# a comment
rdma mlx5_0 state="4: ACTIVE" rate="400 Gb/sec (4X NDR)" driver=mlx5_core pci=pci0000:00/0000:00:01.0/0000:01:00.0 direct=pci0009:00/0009:00:00.0/0009:01:00.0
gpu g vendor=0x10de class=0x030200 numa=1 pci=pci0009:00/0009:00:00.0/0009:02:00.0   # below the same root
gpu virtual
node 1 cpus=2-3`)
	require.NoError(t, err)
	m := topo.Read(sys)
	require.Equal(t, []any{"ACTIVE", 400_000}, []any{m.RDMA[0].State, m.RDMA[0].Mbps})
	require.Equal(t, topo.PCIPath{"pci0009:00", "0009:00:00.0", "0009:01:00.0"}, m.Direct("mlx5_0"))
	require.Equal(t, "0x030200", topo.Word(sys, "bus/pci/devices/0009:02:00.0/class"))
	require.Equal(t, 1, topo.Number(sys, "bus/pci/devices/0009:02:00.0/numa_node", -1))
	require.Len(t, topo.Nodes(sys), 1)

	for text, want := range map[string]string{
		"node 0 cpus=0\nswitch a": `line 2 is not a device: "switch a"; begin it with one of net, rdma, node, gpu and a name`,
		"net":                     `line 1 is not a device: "net"`,
	} {
		_, err := sketch.Parse(text)
		require.ErrorContains(t, err, want)
	}
}

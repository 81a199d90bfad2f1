package rail_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rail"
)

// On the machines of the fixtures, half of the chosen devices are near each node's memory. No device is near an unknown
// node.
func TestNearOnMachines(t *testing.T) {
	for name, c := range map[string]struct {
		fabric, suffix string
		near           [][]string // by node
	}{
		"dgx-h100": {"verbs;ofi_rxm", "", [][]string{{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5"}, {"mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}}},
		"p5-48xlarge": {"efa", "-rdm", [][]string{{"rdmap79s0-rdm", "rdmap96s0-rdm", "rdmap113s0-rdm", "rdmap130s0-rdm"},
			{"rdmap147s0-rdm", "rdmap164s0-rdm", "rdmap181s0-rdm", "rdmap198s0-rdm"}}},
	} {
		m := machine(t, name)
		chosen, _ := rail.Choose(hardware(c.fabric, c.suffix, rdmaNames(m)...), rail.FactsOf(m), rail.ChooseOptions{MaxRails: 8})
		require.True(t, rail.SeveralNodes(chosen), name)
		for node, want := range c.near {
			var near []string
			for _, d := range chosen {
				if rail.Near(d, node) {
					near = append(near, d.Name)
				}
				require.False(t, rail.Near(d, -1))
				require.False(t, rail.Near(d, len(c.near)))
			}
			require.Equal(t, want, near, "%s node %d", name, node)
		}
	}
}

func TestSeveralNodes(t *testing.T) {
	for _, c := range []struct {
		nodes []int
		want  bool
	}{{nil, false}, {[]int{-1, -1}, false}, {[]int{0, 0}, false}, {[]int{-1, 0, 0, -1}, false}, {[]int{1, -1, 0}, true}} {
		var all []provider.Device
		for _, n := range c.nodes {
			all = append(all, provider.Device{NUMA: n})
		}
		require.Equal(t, c.want, rail.SeveralNodes(all), c.nodes)
	}
	require.False(t, rail.Near(provider.Device{NUMA: -1}, -1), "unknown is not near unknown")
}

package topo_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/test/topotest"
)

// A card's second function is found by the card's identity, and lies by the GPU.
func TestDirect(t *testing.T) {
	sys := topotest.FS(t, "testdata/gb300.txt")
	m := topo.Read(sys)
	for nic, gpu := range map[string]string{"mlx5_0": "0009:06:00.0", "mlx5_1": "0008:06:00.0", "mlx5_4": "0019:06:00.0", "mlx5_5": "0018:06:00.0"} {
		require.Equal(t, topo.SamePort, topo.Between(m.Direct(nic), m.Path(gpu)), nic)
		require.Equal(t, topo.OtherRoot, topo.Between(m.Device(nic).PCI, m.Path(gpu)), nic)
	}
	require.Nil(t, m.Direct("mlx5_2"), "a BlueField-3 has none")
	require.Nil(t, m.Direct("nosuch"))
	require.Nil(t, (&topo.Machine{}).Direct("mlx5_0"))
	require.Nil(t, topo.Read(topotest.FS(t, "testdata/dgx-h100.txt")).Direct("mlx5_0"))

	card := sys["devices/pci0000:00/0000:00:00.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/vpd"]
	require.NotNil(t, card)
	whole := card.Data
	for n := range whole { // a container, or a card whose data is cut short or damaged
		card.Data = whole[:n]
		if direct := topo.Read(sys).Direct("mlx5_0"); direct != nil {
			require.Equal(t, len(whole)-1, n, "without its last byte, the end tag, the data is complete")
		}
	}
	sys["devices/pci0000:00/0000:00:00.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/vpd"] = &fstest.MapFile{Data: append([]byte{0x90, 0xff, 0xff}, whole...)}
	require.Nil(t, topo.Read(sys).Direct("mlx5_0"))
}

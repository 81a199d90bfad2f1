package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCapacities: a port is held by its PCIe link, and two ports of one card share the link.
func TestCapacities(t *testing.T) {
	spark := Capacities(load(t, "file dgx-spark\n"))
	port := spark["rocep1s0f1"]
	require.Equal(t, Capacity{200_000, 108_386, "0000:01:00", "x4 at 32 GT/s"}, port)
	require.Equal(t, 108_386, port.Mbps())
	require.Equal(t, 2*108_386, Together([]Capacity{port, spark["roceP2p1s0f1"]}), "two cards to the system")
	require.Equal(t, 108_386, Together([]Capacity{port, port}), "one card")
	require.Zero(t, Together([]Capacity{port, {}}))
	require.Zero(t, Capacity{}.Mbps())
	require.Equal(t, 10, Capacity{Port: 10}.Mbps())
	require.Equal(t, 20, Together([]Capacity{{Port: 10}, {Port: 10}}))
}

package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCapacities: a port is held by its PCIe link.
func TestCapacities(t *testing.T) {
	spark := Capacities(load(t, "file dgx-spark\n"))
	port := spark["rocep1s0f1"]
	require.Equal(t, Capacity{200_000, 108_386, "x4 at 32 GT/s"}, port)
	require.Equal(t, 108_386, port.Mbps())
	require.Zero(t, Capacity{}.Mbps())
	require.Equal(t, 10, Capacity{Port: 10}.Mbps())
}

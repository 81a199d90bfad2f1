package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider"
)

// A rail that completes something, or has nothing in flight, is not looked at. A lost carrier is reported once.
func TestStall(t *testing.T) {
	var s stall
	looks, lost := 0, true
	look := func(completions, inFlight uint64) bool {
		var c core.Tally
		c.Completions, c.InFlight = completions, inFlight
		return s.look(c, func() bool { looks++; return lost })
	}
	require.False(t, look(5, 100), "the first look")
	require.False(t, look(6, 100), "it moves")
	require.False(t, look(6, 0), "idle")
	require.Zero(t, looks)
	require.True(t, look(6, 100))
	require.False(t, look(6, 100), "reported")
	require.Equal(t, 2, looks)
	require.False(t, look(7, 0), "fenced")
	require.True(t, look(7, 100), "again")
	lost = false
	require.False(t, look(7, 100))
}

// The carrier of an RDMA device is that of its interface, not of an interface of the device's name.
func TestInterfaceOf(t *testing.T) {
	require.Equal(t, "eth3", interfaceOf(provider.Device{Fabric: "verbs", Name: "mlx5_0", Net: "eth3"}))
	require.Equal(t, "eth0", interfaceOf(provider.Device{Fabric: "tcp", Name: "eth0"}))
	require.False(t, lostCarrier("no-such-interface"))
	require.False(t, lostCarrier("lo"))
}

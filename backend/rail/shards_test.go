package rail_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rail"
)

func TestShards(t *testing.T) {
	two := []provider.Device{{Fabric: "tcp", Name: "eth0", Shards: 3}, {Fabric: "tcp", Name: "eth1", Shards: 2}, {Fabric: "sm", Name: "memory"}}
	for most, want := range map[int]string{
		64: "tcp/eth0 tcp/eth1 sm/memory tcp/eth0[1] tcp/eth1[1] tcp/eth0[2]",
		4:  "tcp/eth0 tcp/eth1 sm/memory tcp/eth0[1]",
		2:  "tcp/eth0 tcp/eth1 sm/memory", // the choice of devices is made
	} {
		var got []string
		for _, d := range rail.Shards(two, most) {
			got = append(got, rail.Name(d))
		}
		require.Equal(t, want, strings.Join(got, " "), most)
	}
}

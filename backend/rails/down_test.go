package rails

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

func TestDownDevices(t *testing.T) {
	eth0 := provider.Device{Provider: "ofi", Fabric: "net", Name: "eth0", Addr: "192.0.2.1", Subnet: "192.0.2.0/24", NUMA: 1, Mbps: 1000, Opaque: 1}
	efa := provider.Device{Provider: "ofi", Fabric: "efa", Name: "rdmap0", Hardware: true}
	memory := provider.Device{Provider: "sm", Fabric: "sm", Name: "memory", Host: true, Addr: "127.0.0.1"}
	at := func(name string, up bool, addrs ...string) topo.Interface {
		i := topo.Interface{Name: name, Up: up, Loopback: name == "lo"}
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return i
	}
	local := []topo.Interface{at("lo", false, "127.0.0.1/8"), at("eth0", false, "192.0.2.1/24"), at("eth1", false, "fe80::1/64", "2001:db8::1/64", "198.51.100.7/25"),
		at("eth2", true, "203.0.113.1/24"), at("eth3", false, "fe80::1/64"), at("eth4", false, "2001:db8:1::1/64"), at("ifb0", false)}
	for name, c := range map[string]struct {
		found []provider.Device
		want  []string
		names []string
	}{
		"addresses":          {[]provider.Device{eth0}, nil, []string{"eth1 198.51.100.7 198.51.100.0/25", "eth4 2001:db8:1::1 2001:db8:1::/64"}},
		"one named":          {[]provider.Device{efa, eth0}, []string{"eth3"}, []string{"eth1 198.51.100.7 198.51.100.0/25", "eth3  ", "eth4 2001:db8:1::1 2001:db8:1::/64"}},
		"no sockets in use":  {[]provider.Device{efa, memory}, []string{"eth3"}, nil},
		"nothing to go with": {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range downDevices(c.found, local, c.want) {
				require.Equal(t, provider.Device{Provider: "ofi", Fabric: "net", Name: d.Name, Addr: d.Addr, Subnet: d.Subnet, NUMA: -1}, d)
				got = append(got, d.Name+" "+d.Addr+" "+d.Subnet)
			}
			require.Equal(t, c.names, got)
		})
	}
}

package engine

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/test/topotest"
)

func TestControlAddrs(t *testing.T) {
	t.Parallel()
	local := []ifaceAddr{}
	for _, l := range [][2]string{{"lo", "127.0.0.1"}, {"eth0", "192.0.2.7"}, {"eth0", "fe80::7"}, {"eth0", "2001:db8::7"},
		{"eth1", "198.51.100.7"}, {"docker0", "172.17.0.1"}, {"tun0", "10.8.0.2"}, {"eth2", "203.0.113.7"}} {
		local = append(local, ifaceAddr{name: l[0], addr: netip.MustParseAddr(l[1]), down: l[0] == "eth2"})
	}
	m := topo.Read(topotest.Parse(t, `
net eth0 operstate=up carrier=1
net eth1 operstate=up carrier=1
net eth2 operstate=down
net docker0 operstate=up carrier=1 bridge
net tun0 operstate=unknown carrier=1 tun`))
	efa := provider.Device{Fabric: "efa", Name: "rdmap0", Hardware: true}
	roce := provider.Device{Fabric: "verbs", Name: "mlx5_0", Hardware: true, Addr: "198.51.100.7"}
	tcp := provider.Device{Fabric: "net", Name: "eth1", Addr: "198.51.100.7"}
	lo := provider.Device{Fabric: "net", Name: "lo", Addr: "127.0.0.1", Loopback: true}
	for name, c := range map[string]struct {
		rails []provider.Device
		want  []string
		addrs string
	}{
		"sockets":              {[]provider.Device{tcp, lo}, nil, "[198.51.100.7 127.0.0.1]"},
		"the same twice":       {[]provider.Device{tcp, tcp}, nil, "[198.51.100.7]"},
		"without an address":   {[]provider.Device{efa, efa}, nil, "[192.0.2.7 2001:db8::7 198.51.100.7 127.0.0.1]"},
		"some with":            {[]provider.Device{efa, roce}, nil, "[198.51.100.7 192.0.2.7 2001:db8::7 127.0.0.1]"},
		"shared memory":        {[]provider.Device{{Fabric: "shm", Name: "shm"}}, nil, "[127.0.0.1]"},
		"named":                {[]provider.Device{efa}, []string{"eth1"}, "[198.51.100.7]"},
		"named, with an other": {[]provider.Device{tcp, lo}, []string{"eth0", "lo"}, "[127.0.0.1 192.0.2.7 2001:db8::7]"},
		"a bridge by name":     {[]provider.Device{efa}, []string{"docker*"}, "[172.17.0.1]"},
		"all but":              {[]provider.Device{efa}, []string{"*", "!eth*", "!docker0", "!tun0"}, "[127.0.0.1]"},
		"none":                 {[]provider.Device{efa}, []string{"ib0"}, "[]"},
	} {
		require.Equal(t, c.addrs, fmt.Sprint(controlAddrs(c.rails, local, m, c.want)), name)
	}
}

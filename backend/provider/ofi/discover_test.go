package ofi

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// fakeLister is a library with these entries by fabric.
type fakeLister map[string][]*entry

func (f fakeLister) Describe() string { return "libfabric 9.9 (test)" }

func (f fakeLister) List(fabric string) ([]*entry, error) {
	if f[fabric] == nil {
		return nil, errors.New("No data available")
	}
	return f[fabric], nil
}

func listed(i libfabric.Info) *entry { return &entry{Info: &i} }

func sock(prov, ifname, subnet, addr string) *entry {
	return listed(libfabric.Info{Provider: prov, Domain: ifname, Fabric: subnet, Src: netip.MustParseAddr(addr), Protocol: protoXNET})
}

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

var oldLibrary = fakeLister{"net": {
	sock("net", "eth0", "fe80::/64", "fe80::1"),
	sock("net", "eth0", "2001:db8::/64", "2001:db8::1"),
	sock("net", "eth0", "192.0.2.0/24", "192.0.2.2"),
	sock("net", "eth1", "2001:db8:1::/64", "2001:db8:1::1"),
	sock("net", "eth2", "198.51.100.0/24", "198.51.100.1"),
	sock("net", "eth3", "fe80::/64", "fe80::2"),
	sock("net", "lo", "127.0.0.1/32", "127.0.0.1"),
}, "shm": {listed(libfabric.Info{Provider: "shm", Domain: "shm", Fabric: "shm"})}}

var newLibrary = fakeLister{
	"tcp": {sock("tcp", "eth0", "192.0.2.0/24", "192.0.2.2")},
	"efa": {efa("efa-direct", 1<<30), efa("efa", 1<<60)},
}

func efa(fabric string, maxMsg uint64) *entry {
	return listed(libfabric.Info{Provider: "efa", Fabric: fabric, Domain: "rdmap0-rdm", NIC: "rdmap0", PCI: "0000:3b:00.0", BitsPerSecond: 100e9,
		Attr: libfabric.Attr{MaxMsg: maxMsg}})
}

var machine = fstest.MapFS{
	"class/net/eth0/operstate":               file("up"),
	"class/net/eth0/speed":                   file("10000"),
	"class/net/eth0/device/numa_node":        file("1"),
	"class/net/eth1/operstate":               file("up"),
	"class/net/eth1/speed":                   file("25000"),
	"class/net/eth2/operstate":               file("down"),
	"class/net/lo/operstate":                 file("unknown"),
	"bus/pci/devices/0000:3b:00.0/numa_node": file("0"),
}

func with(name, content string) fstest.MapFS {
	m := fstest.MapFS{name: file(content)}
	for k, v := range machine {
		m[k] = v
	}
	return m
}

func TestDiscoverFilters(t *testing.T) {
	efaMachine := with("class/infiniband/rdmap0/device/vendor", "0x1d0f")
	for name, c := range map[string]struct {
		lib     fakeLister
		sys     fstest.MapFS
		fabrics []string
		devices []string
		want    []string
		err     error
		says    []string
	}{
		"tcp unless said":        {lib: oldLibrary, want: []string{"libfabric:net/eth1", "libfabric:net/eth0", "libfabric:net/eth2", "libfabric:net/lo"}},
		"tcp of 1.17":            {lib: oldLibrary, fabrics: []string{"tcp"}, devices: []string{"lo"}, want: []string{"libfabric:net/lo"}},
		"tcp of 2.x":             {lib: newLibrary, fabrics: []string{"tcp"}, want: []string{"libfabric:tcp/eth0"}},
		"glob":                   {lib: oldLibrary, devices: []string{"eth*"}, want: []string{"libfabric:net/eth1", "libfabric:net/eth0", "libfabric:net/eth2"}},
		"exclusion":              {lib: oldLibrary, devices: []string{"!eth1"}, want: []string{"libfabric:net/eth0", "libfabric:net/eth2", "libfabric:net/lo"}},
		"both":                   {lib: oldLibrary, devices: []string{"eth*", "^eth0"}, want: []string{"libfabric:net/eth1", "libfabric:net/eth2"}},
		"numbers wait":           {lib: oldLibrary, devices: []string{"#0", "!lo"}, want: []string{"libfabric:net/eth1", "libfabric:net/eth0", "libfabric:net/eth2"}},
		"verbatim":               {lib: oldLibrary, fabrics: []string{"shm"}, want: []string{"shm/shm"}},
		"order of preference":    {lib: oldLibrary, fabrics: []string{"cxi", "shm", "tcp"}, devices: []string{"shm", "lo"}, want: []string{"shm/shm", "libfabric:net/lo"}},
		"efa":                    {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, want: []string{"efa/rdmap0-rdm"}},
		"efa by hardware's name": {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, devices: []string{"rdmap0"}, want: []string{"efa/rdmap0-rdm"}},
		"tcp beside hardware":    {lib: newLibrary, sys: efaMachine, fabrics: []string{"tcp"}, want: []string{"libfabric:tcp/eth0"}},
		"no provider":            {lib: oldLibrary, sys: efaMachine, fabrics: []string{"efa"}, err: provider.ErrNoDevice, says: []string{"efa", "No data", "libfabric 9.9"}},
		"nothing matches":        {lib: oldLibrary, devices: []string{"ib*"}, err: provider.ErrFiltered, says: []string{"devices=ib*", "eth0", "lo"}},
		"hardware not wanted": {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, devices: []string{"eth0"}, err: provider.ErrFiltered,
			says: []string{"devices=eth0", "rdmap0"}},
		"down is told":   {lib: oldLibrary, devices: []string{"eth2"}, want: []string{"libfabric:net/eth2"}},
		"bad glob":       {lib: oldLibrary, devices: []string{"[x"}, err: provider.ErrNoDevice, says: []string{"[x"}},
		"no such fabric": {lib: oldLibrary, fabrics: []string{"cxi"}, err: provider.ErrNoDevice, says: []string{"cxi", "libfabric 9.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.sys == nil {
				c.sys = machine
			}
			got, err := discover(context.Background(), c.lib, c.sys, provider.Filter{Fabrics: c.fabrics, Devices: c.devices})
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				for _, part := range c.says {
					require.ErrorContains(t, err, part)
				}
				return
			}
			require.NoError(t, err)
			var names []string
			for _, d := range got {
				names = append(names, d.Fabric+"/"+d.Name)
			}
			require.Equal(t, c.want, names)
		})
	}
}

func TestDeviceFacts(t *testing.T) {
	got, err := discover(context.Background(), oldLibrary, machine, provider.Filter{})
	require.NoError(t, err)
	eth1, eth0, lo := got[0], got[1], got[3]
	require.Equal(t, "2001:db8:1::1", eth1.Addr, "IPv6 where there is no IPv4")
	require.Equal(t, "192.0.2.2", eth0.Addr)
	require.Equal(t, "192.0.2.0/24", eth0.Subnet)
	require.Equal(t, uint64(10000), eth0.Mbps)
	require.Equal(t, 1, eth0.NUMA)
	require.False(t, eth0.Hardware || eth0.Loopback)
	require.True(t, lo.Loopback)
	require.Equal(t, -1, lo.NUMA)
	require.Zero(t, lo.Mbps)

	got, err = discover(context.Background(), newLibrary, machine, provider.Filter{Fabrics: []string{"efa"}})
	require.NoError(t, err)
	require.True(t, got[0].Hardware)
	require.Equal(t, "efa", got[0].Subnet, "not efa-direct")
	require.Equal(t, uint64(100_000), got[0].Mbps)
	require.Zero(t, got[0].NUMA)
	require.Equal(t, quirks{}, quirksOf(got[0].Opaque.(*entry)))
}

func TestQuirks(t *testing.T) {
	require.Equal(t, quirks{perPeer: true, noTrywait: true}, quirksOf(oldLibrary["net"][0]))
	require.Equal(t, quirks{perPeer: true}, quirksOf(newLibrary["tcp"][0]))
	require.Equal(t, quirks{}, quirksOf(listed(libfabric.Info{Provider: "tcp;ofi_rxm", Protocol: 11})))
}

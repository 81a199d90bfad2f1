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

func (f fakeLister) list(fabric string) ([]*entry, error) {
	if f[fabric] == nil {
		return nil, errors.New("No data available")
	}
	return f[fabric], nil
}

func listed(i libfabric.Info) *entry { return &entry{Info: &i} }

func sock(prov, ifname, subnet, addr string) *entry {
	return listed(libfabric.Info{Provider: prov, Domain: ifname, Fabric: subnet, Src: netip.MustParseAddr(addr), Protocol: 11})
}

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

const rxm = "tcp;ofi_rxm"

var oldLibrary = fakeLister{rxm: {
	sock(rxm, "eth0", "fe80::/64", "fe80::1"),
	sock(rxm, "eth0", "2001:db8::/64", "2001:db8::1"),
	sock(rxm, "eth0", "192.0.2.0/24", "192.0.2.2"),
	sock(rxm, "eth1", "2001:db8:1::/64", "2001:db8:1::1"),
	sock(rxm, "eth2", "198.51.100.0/24", "198.51.100.1"),
	sock(rxm, "eth3", "fe80::/64", "fe80::2"),
	sock(rxm, "lo", "127.0.0.1/32", "127.0.0.1"),
}, "shm": {listed(libfabric.Info{Provider: "shm", Domain: "shm", Fabric: "shm"})}}

var newLibrary = fakeLister{
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
		"hardware unless said":   {lib: newLibrary, want: []string{"efa/rdmap0-rdm"}},
		"sockets":                {lib: oldLibrary, fabrics: []string{rxm}, want: []string{"tcp;ofi_rxm/eth1", "tcp;ofi_rxm/eth0", "tcp;ofi_rxm/eth2", "tcp;ofi_rxm/lo"}},
		"tcp":                    {lib: oldLibrary, fabrics: []string{"tcp", rxm}, err: provider.ErrUnusable, says: []string{"libfabric's tcp is not driven", "provider=tcp is GORAIL's own"}},
		"tcp of 1.17":            {lib: oldLibrary, fabrics: []string{"net"}, err: provider.ErrUnusable, says: []string{"libfabric's tcp is not driven"}},
		"glob":                   {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"eth*"}, want: []string{"tcp;ofi_rxm/eth1", "tcp;ofi_rxm/eth0", "tcp;ofi_rxm/eth2"}},
		"exclusion":              {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"!eth1"}, want: []string{"tcp;ofi_rxm/eth0", "tcp;ofi_rxm/eth2", "tcp;ofi_rxm/lo"}},
		"both":                   {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"eth*", "^eth0"}, want: []string{"tcp;ofi_rxm/eth1", "tcp;ofi_rxm/eth2"}},
		"numbers wait":           {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"#0", "!lo"}, want: []string{"tcp;ofi_rxm/eth1", "tcp;ofi_rxm/eth0", "tcp;ofi_rxm/eth2"}},
		"verbatim":               {lib: oldLibrary, fabrics: []string{"shm"}, want: []string{"shm/shm"}},
		"order of preference":    {lib: oldLibrary, fabrics: []string{"cxi", "shm", rxm}, devices: []string{"shm", "lo"}, want: []string{"shm/shm", "tcp;ofi_rxm/lo"}},
		"efa":                    {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, want: []string{"efa/rdmap0-rdm"}},
		"efa by hardware's name": {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, devices: []string{"rdmap0"}, want: []string{"efa/rdmap0-rdm"}},
		"no provider":            {lib: oldLibrary, sys: efaMachine, fabrics: []string{"efa"}, err: provider.ErrNoDevice, says: []string{"efa", "No data", "libfabric 9.9"}},
		"nothing matches":        {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"ib*"}, err: provider.ErrFiltered, says: []string{"devices=ib*", "eth0", "lo"}},
		"hardware not wanted": {lib: newLibrary, sys: efaMachine, fabrics: []string{"efa"}, devices: []string{"eth0"}, err: provider.ErrFiltered,
			says: []string{"devices=eth0", "rdmap0"}},
		"down is told":   {lib: oldLibrary, fabrics: []string{rxm}, devices: []string{"eth2"}, want: []string{"tcp;ofi_rxm/eth2"}},
		"bad glob":       {lib: oldLibrary, devices: []string{"[x"}, err: provider.ErrNoDevice, says: []string{"[x"}},
		"no such fabric": {lib: oldLibrary, fabrics: []string{"cxi"}, err: provider.ErrNoDevice, says: []string{"cxi", "libfabric 9.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.sys == nil {
				c.sys = machine
			}
			got, err := discover(context.Background(), library{"libfabric 9.9 (test)", c.lib.list}, c.sys, provider.Filter{Fabrics: c.fabrics, Devices: c.devices})
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

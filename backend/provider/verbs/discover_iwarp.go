package verbs

import (
	"cmp"
	"fmt"
	"io/fs"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/rdmacm"
	"gorail/backend/topo"
)

// iwarpPorts is what rdma_cm knows of this machine's iWARP devices, asked for at the first of them.
type iwarpPorts struct {
	path  string // of librdmacm
	asked bool
	lib   *rdmacm.Library
	own   map[string]own // by device
	err   error
}

// device turns a port into a device. An iWARP port is reached by the address of its interface; its Subnet is of iWARP alone, so that
// no RoCE device in the same network is taken for its peer.
func (i *iwarpPorts) device(lib *library, sys fs.FS, m *topo.Machine, p port) (provider.Device, error) {
	if !i.asked {
		i.asked = true
		if i.lib, i.err = loadCMLibrary(i.path); i.err == nil {
			i.own, i.err = addresses(i.lib)
		}
	}
	if i.lib == nil {
		return provider.Device{}, i.err
	}
	if !p.active {
		return provider.Device{}, fmt.Errorf("the port is %s", p.state)
	}
	o, ok := i.own[p.device]
	if !ok {
		return provider.Device{}, fmt.Errorf("iWARP without an IP address that rdma_cm knows to be the device's; give its interface one (%w)", cmp.Or(i.err, error(syscall.ENODEV)))
	}
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, Mbps: p.mbps, NUMA: -1, Addr: o.addr.String(),
		Subnet: "iwarp:" + o.prefix.Masked().String(), Opaque: &entry{lib: lib, port: p, sys: sys, gid: gid{addr: o.addr, net: o.net}, cm: i.lib}}
	if r := m.Device(p.device); r != nil {
		d.NUMA = r.NUMA
	}
	return d, nil
}

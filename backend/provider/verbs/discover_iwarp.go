package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
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
func (i *iwarpPorts) device(lib *ibverbs.Library, sys fs.FS, m *topo.Machine, p port) (provider.Device, error) {
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

// loadCMLibrary loads librdmacm once. The error wraps provider.ErrNoLibrary.
func loadCMLibrary(path string) (*rdmacm.Library, error) {
	lib, err := rdmacm.Load(path)
	if err != nil {
		return nil, fmt.Errorf("%w: librdmacm %q, which connects iWARP devices: %w; install it (Debian: apt-get install librdmacm1) or "+
			"give its path in option rdmacm_path", provider.ErrNoLibrary, path, err)
	}
	return lib, nil
}

// own is an address of an interface.
type own struct {
	addr   netip.Addr
	prefix netip.Prefix
	net    string
}

// better says whether iWARP should use a rather than b: IPv4 before IPv6, those of the link alone last.
func (a own) better(b own) bool {
	rank := func(o own) int {
		switch {
		case o.addr.IsLinkLocalUnicast():
			return 0
		case !o.addr.Is4():
			return 1
		}
		return 2
	}
	return rank(a) > rank(b)
}

// addresses asks which device has which address of this network namespace; of several the best. why says for which of
// them nobody knows: another reason before ENODEV, which those have that are of no RDMA device.
func addresses(lib *rdmacm.Library) (best map[string]own, why error) {
	best = map[string]own{}
	nets, err := net.Interfaces()
	if err != nil {
		return best, err
	}
	for _, n := range nets {
		for _, p := range prefixes(n.Name) {
			o := own{p.Addr(), p, n.Name}
			if o.addr.Is6() && o.addr.IsLinkLocalUnicast() {
				continue // means nothing without its interface
			}
			name, err := lib.DeviceOf(o.addr)
			if err != nil {
				call := clib.As(err)
				err = fmt.Errorf("%s %s: %w", call.Call, o.addr, call.Errno)
				if why == nil || errors.Is(why, syscall.ENODEV) {
					why = err
				}
				continue
			}
			if b, ok := best[name]; !ok || o.better(b) {
				best[name] = o
			}
		}
	}
	return best, why
}

package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/provider/verbs/rdmacm"
	"gorail/backend/topo"
)

// iwarpPorts holds rdma_cm's view of this machine's iWARP devices. It is read at the first iWARP port.
type iwarpPorts struct {
	path  string // path of librdmacm
	asked bool
	lib   *rdmacm.Library
	own   map[string]localAddr // address by device name
	err   error
}

// device turns a port into a device. Peers reach an iWARP port by the IP address of its interface. Its Subnet starts
// with "iwarp:", so that no RoCE device of the same network becomes its peer.
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
		return provider.Device{}, fmt.Errorf("iWARP without an IP address known to rdma_cm; give its network interface an address (%w)", cmp.Or(i.err, error(syscall.ENODEV)))
	}
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, Mbps: p.mbps, NUMA: -1, Net: o.net, Addr: o.addr.String(),
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

// localAddr is an address of a local interface.
type localAddr struct {
	addr   netip.Addr
	prefix netip.Prefix
	net    string
}

// better reports whether iWARP should prefer a to b: IPv4 first, then IPv6, link-local addresses last.
func (a localAddr) better(b localAddr) bool {
	rank := func(o localAddr) int {
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

// addresses maps each RDMA device to its best address in this network namespace. why is the reason of a failed look-up.
// ENODEV, the reason for an address without an RDMA device, gives way to any other reason.
func addresses(lib *rdmacm.Library) (best map[string]localAddr, why error) {
	best = map[string]localAddr{}
	nets, err := topo.Interfaces()
	if err != nil {
		return best, err
	}
	for _, n := range nets {
		for _, p := range n.Addrs {
			o := localAddr{p.Addr(), p, n.Name}
			if o.addr.Is6() && o.addr.IsLinkLocalUnicast() {
				continue // ambiguous without its interface
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

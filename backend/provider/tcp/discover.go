package tcp

import (
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// devices lists the interfaces with a usable address that match the patterns, best first. Interfaces that are down are in the
// list: the code that chooses rails reports them.
func devices(sys fs.FS, list []topo.Interface, f provider.Filter) (out []provider.Device, err error) {
	match, err := f.Patterns()
	if err != nil {
		return nil, err
	}
	var seen []string
	for _, i := range list {
		at, ok := usableAddress(i.Addrs)
		if !ok {
			continue
		}
		seen = append(seen, i.Name)
		if !match.May(i.Name) {
			continue
		}
		out = append(out, provider.Device{Provider: provider.TCP, Fabric: provider.TCP, Name: i.Name, Subnet: at.Masked().String(), Addr: at.Addr().String(),
			Loopback: i.Loopback, Mbps: uint64(max(0, topo.Number(sys, "class/net/"+i.Name+"/speed", 0))),
			NUMA: topo.Number(sys, "class/net/"+i.Name+"/device/numa_node", -1), Opaque: at.Addr()})
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%w: provider=%s: no network interface has an address", provider.ErrNoDevice, provider.TCP)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: provider=%s: %w devices=%s (there are: %s)", provider.ErrNoDevice, provider.TCP, provider.ErrFiltered,
			match, strings.Join(seen, ", "))
	}
	slices.SortStableFunc(out, provider.Device.Compare)
	return out, nil
}

// usableAddress chooses an interface's address: IPv4 before global IPv6.
func usableAddress(list []netip.Prefix) (at netip.Prefix, ok bool) {
	for _, p := range list {
		a := p.Addr()
		if a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() {
			continue
		}
		if !ok || a.Is4() && !at.Addr().Is4() {
			at, ok = p, true
		}
	}
	return at, ok
}

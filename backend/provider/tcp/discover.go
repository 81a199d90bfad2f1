package tcp

import (
	"cmp"
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
func devices(sys fs.FS, list []topo.Interface, patterns []string) (out []provider.Device, err error) {
	match, err := topo.ParsePatterns(patterns)
	if err != nil {
		return nil, fmt.Errorf("%w: option devices: %w", provider.ErrNoDevice, err)
	}
	var seen []string
	for _, i := range list {
		at, ok := address(i.Addrs)
		if !ok {
			continue
		}
		seen = append(seen, i.Name)
		if !match.May(i.Name) {
			continue
		}
		out = append(out, provider.Device{Provider: Fabric, Fabric: Fabric, Name: i.Name, Subnet: at.Masked().String(), Addr: at.Addr().String(),
			Loopback: i.Loopback, Mbps: uint64(max(0, topo.Number(sys, "class/net/"+i.Name+"/speed", 0))),
			NUMA: topo.Number(sys, "class/net/"+i.Name+"/device/numa_node", -1), Opaque: at.Addr()})
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%w: provider=%s: no network interface has an address", provider.ErrNoDevice, Fabric)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: provider=%s: %w devices=%s (there are: %s)", provider.ErrNoDevice, Fabric, provider.ErrFiltered,
			strings.Join(patterns, ","), strings.Join(seen, ", "))
	}
	slices.SortStableFunc(out, better)
	return out, nil
}

// address chooses an interface's address: IPv4 before global IPv6.
func address(list []netip.Prefix) (at netip.Prefix, ok bool) {
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

// better orders devices: those that leave the host first, then the faster ones, then by name.
func better(a, b provider.Device) int {
	far := func(d provider.Device) int {
		if d.Loopback {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(b.Mbps, a.Mbps), topo.Natural(a.Name, b.Name))
}

package verbs

import (
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"gorail/backend/topo"
)

// gid is one entry of a port's GID table.
type gid struct {
	index int
	addr  netip.Addr // in IPv6 form; RoCE's IPv4 addresses are IPv4-mapped
	kind  string     // "IB/RoCE v1", "RoCE v2"; "" if the kernel does not say
	net   string     // network interface
}

// readGIDs reads a port's GID table from sysfs. It skips empty entries and entries that cannot be read, as in
// containers.
func readGIDs(sys fs.FS, device string, port, count int) []gid {
	var list []gid
	for i := range count {
		addr, err := netip.ParseAddr(gidWord(sys, device, port, "gids", i))
		if err != nil || addr.IsUnspecified() {
			continue
		}
		list = append(list, gid{i, addr, gidWord(sys, device, port, "gid_attrs/types", i), gidWord(sys, device, port, "gid_attrs/ndevs", i)})
	}
	return list
}

// gidWord reads what a folder of a port has for an index of the GID table.
func gidWord(sys fs.FS, device string, port int, folder string, index int) string {
	return topo.Word(sys, fmt.Sprintf("class/infiniband/%s/ports/%d/%s/%d", device, port, folder, index))
}

// rank orders GIDs for RoCE: RoCE v2 on IPv4, then on global IPv6, private IPv6 and link-local addresses. RoCE v1 has
// rank 0 and is used only on request, because it cannot be routed and networks are not set up for it.
func (g gid) rank() int {
	switch a := g.addr.Unmap(); {
	case g.kind != "RoCE v2":
		return 0
	case a.Is4():
		return 4
	case a.IsLinkLocalUnicast():
		return 1
	case a.IsPrivate():
		return 2
	default:
		return 3
	}
}

// chooseGID returns the entry with the requested index, or the best entry. On InfiniBand the default is entry 0.
func chooseGID(list []gid, ethernet bool, asked int) (gid, error) {
	best := -1
	for i, g := range list {
		switch {
		case asked >= 0 && g.index == asked:
			return g, nil
		case asked >= 0:
		case !ethernet && g.index == 0:
			return g, nil
		case ethernet && g.rank() > 0 && (best < 0 || g.rank() > list[best].rank()):
			best = i
		}
	}
	if best >= 0 {
		return list[best], nil
	}
	var have []string
	for _, g := range list {
		have = append(have, fmt.Sprintf("%d: %s %s", g.index, g.addr, g.kind))
	}
	what, do := "no RoCE v2 entry", "give the interface an IP address, or choose with option gid_index"
	switch {
	case asked >= 0:
		what, do = fmt.Sprintf("no entry %d (option gid_index)", asked), "choose one of the listed entries"
	case !ethernet:
		what, do = "no entry 0", "is a subnet manager running?"
	}
	return gid{}, fmt.Errorf("the GID table has %s: [%s]; %s", what, strings.Join(have, ", "), do)
}

// netHere returns the GID's interface. In a container another interface may have that name, so "" unless it has the address.
func (o Options) netHere(g gid) string {
	if slices.ContainsFunc(o.prefixes(g.net), func(p netip.Prefix) bool { return p.Addr() == g.addr.Unmap() }) {
		return g.net
	}
	return ""
}

// prefixes returns the addresses of an interface of this network namespace.
func (o Options) prefixes(name string) []netip.Prefix {
	list, _ := o.Interfaces()
	return topo.Addrs(list, name)
}

// gidTable is the length of GID tables that GIDOf reads. Drivers have up to 256 entries.
const gidTable = 256

// GIDOf names the GID that a port would take, and why. For gorail doctor: it opens no device.
func GIDOf(sys fs.FS, device string, number int, ethernet bool, asked int) (string, error) {
	p := port{device: device, number: number, ethernet: ethernet, gids: gidTable}
	o := Options{Sys: sys, Interfaces: topo.Interfaces}
	o.GIDIndex = asked
	g, err := chooseGID(p.reachable(o), ethernet, asked)
	if err != nil {
		return "", err
	}
	why := "RoCE v2 on the best address"
	switch {
	case asked >= 0:
		why = "option gid_index"
	case !ethernet:
		why = "InfiniBand's first"
	}
	return fmt.Sprintf("GID %d: %s %s (%s)", g.index, g.addr.Unmap(), g.kind, why), nil
}

package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
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

// resolveGID looks the GID up again after a change of the table. changed describes a change; err says why there is no GID any more. Open endpoints
// keep their GID.
func (r *rail) resolveGID() (changed string, err error) {
	list := r.entry.port.reachable(r.opt)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, had := r.gid, r.noGID == nil
	g, err := r.again(list)
	if err != nil {
		err = fmt.Errorf("%s is gone: %w", was.addr.Unmap(), err)
		r.noGID = err
		if !had {
			return "", nil
		}
		return "", err
	}
	r.gid, r.noGID = g, nil
	if had && r.gid == was {
		return "", nil
	}
	return fmt.Sprintf("%s at index %d, was %s at %d", g.addr.Unmap(), g.index, was.addr.Unmap(), was.index), nil
}

// again returns the entry of the rail's own address, at any index. If it is gone, the engine follows the interface, and Move brings another
// address: any other that the table has may be one that no peer reaches. No interface of this network namespace: another address of the same
// rank, which peers can reach equally. Under mu.
func (r *rail) again(list []gid) (gid, error) {
	if own := r.entries(list, r.gid.addr); len(own) > 0 {
		return own[0], nil
	}
	if r.dev.Net != "" {
		return gid{}, fmt.Errorf("the GID table does not have it; %s gets another address, or this one again", r.dev.Net)
	}
	if r.opt.GIDIndex < 0 {
		list = slices.DeleteFunc(list, func(g gid) bool { return g.rank() != r.gid.rank() })
	}
	return chooseGID(list, r.entry.port.ethernet, r.opt.GIDIndex)
}

// entries returns the entries of an address with the rail's kind, that at the index of option gid_index first: after a change of addresses
// another one may be there. Under mu.
func (r *rail) entries(list []gid, addr netip.Addr) []gid {
	own := slices.DeleteFunc(slices.Clone(list), func(g gid) bool { return g.addr != addr || g.kind != r.gid.kind })
	if i := slices.IndexFunc(own, func(g gid) bool { return g.index == r.opt.GIDIndex }); i > 0 {
		own[0], own[i] = own[i], own[0]
	}
	return own
}

var (
	errStays = errors.New("the rail has the address with which it was opened, always")
	errNoGID = errors.New("the GID table does not have the address, or not as the kind of GID that the rail has")
)

// Move implements provider.Mover for RoCE. The kernel enters an interface's new address into the GID table a moment later. An InfiniBand rail needs
// no address.
func (r *rail) Move(to netip.Prefix) error {
	e := r.entry
	if !e.port.ethernet {
		return fmt.Errorf("%w: %s/%s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, errStays)
	}
	list := e.port.reachable(r.opt)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.entries(list, netip.AddrFrom16(to.Addr().As16()))
	if len(now) == 0 {
		return fmt.Errorf("%w: %s/%s: %s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, to.Addr(), errNoGID)
	}
	d := r.Device()
	d.Addr, d.Subnet = to.Addr().String(), to.Masked().String()
	r.gid, r.noGID = now[0], nil
	r.at.Store(&d)
	return nil
}

// sourceIs returns an error unless an index of the GID table has this GID. An entry that a queue pair uses stays, so after the transition to RTR this says
// which one the queue pair has got: between the endpoint's opening and its connection the index may have become free, and another address's.
func (r *rail) sourceIs(index int, own [16]byte) error {
	want := netip.AddrFrom16(own)
	has, err := netip.ParseAddr(gidWord(r.opt.Sys, r.entry.port.device, r.entry.port.number, "gids", index))
	if err == nil && has == want {
		return nil
	}
	return &clib.CallError{Call: fmt.Sprintf("connect from %s, which is not at index %d of the GID table any more,", want.Unmap(), index), Errno: syscall.EADDRNOTAVAIL}
}

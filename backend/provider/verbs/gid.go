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
	addr  netip.Addr // as an IPv6 address; RoCE's IPv4 ones are mapped
	kind  string     // "IB/RoCE v1", "RoCE v2"; "" where the kernel doesn't tell
	net   string     // its interface
}

// readGIDs reads a port's table from below sys. Entries that can't be read (in containers) or are empty are left out.
func readGIDs(sys fs.FS, device string, port, count int) []gid {
	var list []gid
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d/", device, port)
	for i := range count {
		addr, err := netip.ParseAddr(topo.Word(sys, fmt.Sprint(dir, "gids/", i)))
		if err != nil || addr.IsUnspecified() {
			continue
		}
		list = append(list, gid{i, addr, topo.Word(sys, fmt.Sprint(dir, "gid_attrs/types/", i)), topo.Word(sys, fmt.Sprint(dir, "gid_attrs/ndevs/", i))})
	}
	return list
}

// rank orders what RoCE can use: version 2 over an IPv4 address, a global one, one of a site, of the link alone. Version 1
// reaches nothing behind a router and is not what networks are set up for: only on demand.
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

// chooseGID takes the entry with the index that is asked for, or the best. InfiniBand's is the first.
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
		what, do = fmt.Sprintf("no entry %d (option gid_index)", asked), "choose one that there is"
	case !ethernet:
		what, do = "no entry 0", "is a subnet manager running?"
	}
	return gid{}, fmt.Errorf("its GID table has %s: [%s]; %s", what, strings.Join(have, ", "), do)
}

// reachable is the port's table, without what another network namespace has: in a container it may be the host's.
func (p port) reachable(sys fs.FS, asked int) []gid {
	all := readGIDs(sys, p.device, p.number, p.gids)
	here := slices.DeleteFunc(slices.Clone(all), func(g gid) bool { return !g.here() })
	if p.ethernet && asked < 0 && len(here) > 0 {
		return here
	}
	return all
}

// source is the GID of new endpoints, or why there is none.
func (r *rail) source() (gid, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gid, r.noGID
}

// resolve looks the GID up again: the same address wherever it is now, else one of its kind, which peers can reach as they did that.
// changed says what is different, err why there is none any more. Endpoints that are open keep theirs.
func (r *rail) resolve() (changed string, err error) {
	e := r.entry
	if e.cm != nil { // iWARP has an IP address for good
		return "", nil
	}
	list := e.port.reachable(e.sys, e.asked)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, had := r.gid, r.noGID == nil
	if e.asked < 0 {
		list = slices.DeleteFunc(list, func(g gid) bool { return g.rank() != was.rank() })
		if same := slices.IndexFunc(list, func(g gid) bool { return g.addr == was.addr }); same >= 0 {
			list = list[same : same+1]
		}
	}
	g, err := chooseGID(list, e.port.ethernet, e.asked)
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

// peerName is a peer's port, for messages.
func (e *entry) peerName(a address) string {
	if a.Ethernet {
		return netip.AddrFrom16(a.GID).Unmap().String()
	}
	return fmt.Sprintf("lid %d", a.LID)
}

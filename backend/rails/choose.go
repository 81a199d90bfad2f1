package rails

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// ChooseOptions are the options of the user.
type ChooseOptions struct {
	Devices  []string // the option devices, see topo.Patterns
	Fabrics  []string // the option provider: fabrics in order of preference; other fabrics follow, hardware first
	MaxRails int      // the limit of rails without loopback rails; 0: no limit
	Slots    int      // the limit of all rails; 0: no limit
}

// Left is an unused device, and the reason.
type Left struct {
	Device provider.Device
	Reason string
}

func (l Left) String() string { return Name(l.Device) + ": " + l.Reason }

// Name is the name of a device in messages: "net/eth0".
func Name(d provider.Device) string { return d.Label() }

// Names lists devices for messages.
func Names(devices []provider.Device) string { return list(devices, Name) }

// Reasons lists unused devices with the reasons.
func Reasons(left []Left) string { return list(left, Left.String) }

func list[T any](all []T, text func(T) string) string {
	if len(all) == 0 {
		return "none"
	}
	parts := make([]string, len(all))
	for i, one := range all {
		parts[i] = text(one)
	}
	return strings.Join(parts, ", ")
}

// overLimit begins the reason of a device over the limit of rails.
const overLimit = "over max_rails="

// OverLimit counts, by fabric, the unused devices over the limit that are not loopback.
func OverLimit(left []Left) map[string]int {
	n := map[string]int{}
	for _, l := range left {
		if !l.Device.Loopback && strings.HasPrefix(l.Reason, overLimit) {
			n[l.Device.Fabric]++
		}
	}
	return n
}

// candidate is a device that the rules examine.
type candidate struct {
	provider.Device
	Facts
	place   int // index in the order of all candidates
	verdict topo.Verdict
}

// exempt returns true if the rules for sensible defaults do not apply.
func (d candidate) exempt() bool { return d.Loopback || d.Confined || d.verdict == topo.Named }

func byPlace(a, b candidate) int { return cmp.Compare(a.place, b.place) }

// Choose selects the devices to open. facts may be nil. The order of both results depends on the devices only, not on
// the order of found: loopback first, then by fabric, PCI address and name. Choose fills in speed and NUMA node where
// the provider did not know them.
//
// Loopback devices are always chosen: they serve peers in the same network namespace. Of the others, Choose leaves
// out devices that are down, and second addresses. It keeps the devices that the option devices names. Of the rest it
// leaves out bridges, their ports, tunnels, wireless and management interfaces. It also leaves out devices with less
// than a quarter of the speed of their fabric's fastest. A bridge with a real port is used if its fabric has nothing
// else. If there are more than MaxRails, Choose takes the fast ones, spread over NUMA nodes and PCI switches.
func Choose(found []provider.Device, facts func(provider.Device) Facts, opt ChooseOptions) (chosen []provider.Device, left []Left) {
	c := chooser{opt: opt}
	c.sort(found, facts)
	seen := map[string]bool{}
	c.drop(func(d candidate) string {
		if seen[Name(d.Device)] {
			return "a second address of " + d.Name
		}
		seen[Name(d.Device)] = true
		return ""
	})
	c.byOption()
	c.drop(func(d candidate) string {
		if d.Down && !d.Loopback && d.Waits == "" {
			return "link is down"
		}
		return d.Waits
	})
	c.byKind()
	c.bySpeed()
	c.byManagement()
	c.restoreBridges()
	c.limit()
	slices.SortStableFunc(c.left, func(a, b placed) int { return cmp.Compare(a.place, b.place) })
	for _, d := range c.in {
		chosen = append(chosen, d.Device)
	}
	for _, l := range c.left {
		left = append(left, l.Left)
	}
	return chosen, left
}

type placed struct {
	Left
	place int
}

type chooser struct {
	opt     ChooseOptions
	in      []candidate // in order
	left    []placed
	bridges []candidate // restoreBridges may bring them back
}

func (c *chooser) sort(found []provider.Device, facts func(provider.Device) Facts) {
	for _, d := range found {
		f := Facts{NUMA: -1}
		if facts != nil {
			f = facts(d)
		}
		if d.Mbps == 0 {
			d.Mbps = f.Mbps
		}
		if d.NUMA < 0 {
			d.NUMA = f.NUMA
		}
		f.RDMA = f.RDMA || d.Hardware
		c.in = append(c.in, candidate{Device: d, Facts: f})
	}
	slices.SortStableFunc(c.in, func(a, b candidate) int {
		return cmp.Or(less(a.Loopback, b.Loopback), cmp.Compare(c.preference(a.Fabric), c.preference(b.Fabric)), less(a.Hardware, b.Hardware),
			strings.Compare(a.Fabric, b.Fabric), a.PCI.Compare(b.PCI), topo.Natural(a.Name, b.Name), compareAddr(a.Addr, b.Addr),
			strings.Compare(a.Subnet, b.Subnet))
	})
	for i := range c.in {
		c.in[i].place = i
	}
}

// less puts true first.
func less(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (c *chooser) preference(fabric string) int {
	for i, name := range c.opt.Fabrics {
		if name == fabric || name == "libfabric:"+fabric {
			return i
		}
	}
	return len(c.opt.Fabrics)
}

// compareAddr puts IPv4 before IPv6.
func compareAddr(a, b string) int {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX != nil || errY != nil {
		return strings.Compare(a, b)
	}
	return x.Compare(y)
}

// drop leaves out each device for which why returns a reason.
func (c *chooser) drop(why func(candidate) string) {
	var in []candidate
	for _, d := range c.in {
		if reason := why(d); reason != "" {
			c.left = append(c.left, placed{Left{d.Device, reason}, d.place})
		} else {
			in = append(in, d)
		}
	}
	c.in = in
}

// findNodes enables NodeOf if the rails are on several NUMA nodes and the kernel reports the node of memory.
func (s *Set) findNodes() {
	if !SeveralNodes(s.Devices()) {
		return
	}
	var here uint64 = 1
	if _, err := topo.NodeOf(uint64(uintptr(unsafe.Pointer(&here))), 8); err != nil {
		s.log.Info("NUMA node of memory cannot be read: rails near the memory are not preferred (container: needs CAP_SYS_NICE)", "err", err)
		return
	}
	s.Nodes = topo.NodeOf
}

// NodeOf is the NUMA node of memory; -1: unknown.
func (s *Set) NodeOf(addr, length uint64) int {
	if s.Nodes == nil {
		return -1
	}
	node, err := s.Nodes(addr, length)
	if err != nil {
		return -1
	}
	return node
}

// Near returns true if a device is on the NUMA node of some memory; false if one of the two nodes is unknown (-1). Links
// over near devices come first. Links over other devices count as half as fast until their speed is measured.
func Near(d provider.Device, node int) bool { return node >= 0 && d.NUMA == node }

// SeveralNodes returns true if the devices are on more than one NUMA node, so that the place of memory matters.
func SeveralNodes(devices []provider.Device) bool {
	first := -1
	for _, d := range devices {
		switch {
		case d.NUMA < 0:
		case first < 0:
			first = d.NUMA
		case d.NUMA != first:
			return true
		}
	}
	return false
}

// Shards adds the further shards of the devices: all second ones, then all third ones, and so on, until there are `most` rails.
func Shards(devices []provider.Device, most int) []provider.Device {
	out := devices
	for shard, more := 1, true; more; shard++ {
		more = false
		for _, d := range devices {
			if shard < d.Shards && len(out) < most {
				d.Shard = shard
				out = append(out, d)
				more = true
			}
		}
	}
	return out
}

package rails

import (
	"regexp"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Facts are the machine's facts about a device that matter for the choice. The zero value is unknown, except for NUMA.
type Facts struct {
	Down       bool   // cannot carry data now
	Bridge     bool   // an interface made of others, in software
	Wired      bool   // of a bridge: one of its ports is a real interface
	PortOf     string // "bridge docker0", "bond bond0": its traffic belongs to that interface
	Tunnel     bool   // tun, vxlan, wireguard and the like
	Wireless   bool
	Management bool // by its name or its bus: made for managing the machine
	RDMA       bool // RDMA hardware, or its network interface
	Mbps       uint64
	NUMA       int // node; -1: unknown
	PCI        topo.PCIPath
}

// FactsOf returns a lookup in the machine's inventory. It finds RDMA devices by their own name, sockets by the name of
// the interface.
func FactsOf(m *topo.Machine) func(provider.Device) Facts {
	return func(d provider.Device) Facts {
		for _, name := range names(d) {
			if r := m.Device(name); r != nil {
				return rdmaFacts(m, r)
			}
		}
		n := m.Net(d.Name)
		if n == nil || d.Hardware {
			return Facts{NUMA: -1, RDMA: d.Hardware}
		}
		f := Facts{
			Down: !n.Up(), Bridge: n.Bridge, Tunnel: n.Tunnel, Wireless: n.Wireless, RDMA: hasRDMA(m, n),
			Management: n.Bus == "usb" || managementNames.MatchString(n.Name), Mbps: known(n.Mbps), NUMA: m.Node(n.Name), PCI: n.PCI,
		}
		f.Wired = n.Bridge && slices.ContainsFunc(n.Over, m.Wired)
		switch {
		case n.PortOf != "":
			f.PortOf = "bridge " + n.PortOf
		case n.BondOf != "":
			f.PortOf = "bond " + n.BondOf
		}
		return f
	}
}

// hasRDMA returns true if an interface belongs to an RDMA device. A bond or VLAN has RDMA if an interface up to two levels
// below has.
func hasRDMA(m *topo.Machine, n *topo.Net) bool {
	if m.RDMAOf(n.Name) != nil {
		return true
	}
	if n.Bridge {
		return false
	}
	return slices.ContainsFunc(n.Over, func(below string) bool {
		l := m.Net(below)
		return m.RDMAOf(below) != nil || l != nil && slices.ContainsFunc(l.Over, func(b string) bool { return m.RDMAOf(b) != nil })
	})
}

// managementNames matches interfaces to the machine's own controller, and the node management network of Cray machines.
var managementNames = regexp.MustCompile(`^(bmc|ipmi|idrac|ilo|mgmt|nmn|hmn)[_0-9]`)

func rdmaFacts(m *topo.Machine, r *topo.RDMA) Facts {
	f := Facts{RDMA: true, Down: r.State != "" && r.State != "ACTIVE", Mbps: known(r.Mbps), NUMA: r.NUMA, PCI: r.PCI}
	if r.State == "" && len(r.Nets) > 0 {
		if n := m.Net(r.Nets[0]); n != nil {
			f.Down, f.Mbps = !n.Up(), max(f.Mbps, known(n.Mbps))
		}
	}
	return f
}

func known(mbps int) uint64 { return uint64(max(0, mbps)) }

// names are the possible names of a device: libfabric appends the kind of endpoint to the name of the hardware.
func names(d provider.Device) []string {
	for _, kind := range []string{"-rdm", "-dgrm", "-dgram", "-xrc"} {
		if hardware, ok := strings.CutSuffix(d.Name, kind); ok {
			return []string{d.Name, hardware}
		}
	}
	return []string{d.Name}
}

package doctor

import (
	"slices"

	"gorail/backend/topo"
)

// Capacity is what links should give, in megabits a second; 0: unknown.
type Capacity struct {
	Port int    // the speed of the port or interface
	PCIe int    // what its PCIe link carries, after encoding and headers
	Card string // devices of one card share the PCIe link; "": unknown
	Link string // the PCIe link in words: x4 at 32 GT/s
}

// Mbps is the smaller of what port and PCIe link carry; 0: unknown.
func (c Capacity) Mbps() int {
	if c.Port <= 0 || c.PCIe > 0 && c.PCIe < c.Port {
		return max(0, c.PCIe)
	}
	return c.Port
}

// Capacities returns what the links of devices should give, by the names of RDMA devices and of network interfaces.
func Capacities(h *Host) map[string]Capacity {
	s := &checker{Report: &Report{}, Host: h, machine: topo.Read(h.Sys)}
	out := map[string]Capacity{}
	add := func(name, dir string, mbps int, at topo.PCIPath) {
		c := Capacity{Port: max(0, mbps)}
		if link, ok := s.pcieOf(dir, "current"); ok {
			c.PCIe, c.Card, c.Link = link.mbps(), card(at), link.String()
		}
		out[name] = c
	}
	for _, n := range s.machine.Nets() {
		add(n.Name, "class/net/"+n.Name+"/device", n.Mbps, n.PCI)
	}
	for _, r := range s.machine.RDMA {
		add(r.Name, "class/"+r.Class+"/"+r.Name+"/device", s.speed(r), r.PCI)
	}
	return out
}

// Together returns what several devices should give, in megabits a second: the sum of their ports, but of each card no more than its
// PCIe link carries. 0: unknown for one of them.
func Together(all []Capacity) (sum int) {
	var cards []string
	for _, c := range all {
		switch {
		case c.Mbps() == 0:
			return 0
		case c.Card == "" || c.PCIe == 0:
			sum += c.Mbps()
		case !slices.Contains(cards, c.Card):
			cards = append(cards, c.Card)
			ports := 0
			for _, o := range all {
				if o.Card == c.Card {
					ports += o.Mbps()
				}
			}
			sum += min(ports, c.PCIe)
		}
	}
	return sum
}

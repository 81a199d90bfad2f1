package doctor

import "gorail/backend/topo"

// Capacity is what links should give, in megabits a second; 0: unknown.
type Capacity struct {
	Port int    // the speed of the port or interface
	PCIe int    // what its PCIe link carries, after encoding and headers
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
	add := func(name, dir string, mbps int) {
		c := Capacity{Port: max(0, mbps)}
		if link, ok := s.pcieOf(dir, "current"); ok {
			c.PCIe, c.Link = link.mbps(), link.String()
		}
		out[name] = c
	}
	for _, n := range s.machine.Nets() {
		add(n.Name, "class/net/"+n.Name+"/device", n.Mbps)
	}
	for _, r := range s.machine.RDMA {
		add(r.Name, "class/"+r.Class+"/"+r.Name+"/device", s.speed(r))
	}
	return out
}

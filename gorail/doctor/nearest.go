package doctor

import (
	"fmt"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// know finds all devices that an engine knows, and their places: after nest. Option max_rails limits those of one region of memory.
func (s *checker) know() {
	s.rails, s.railErr = s.Try.Rails(s.opt)
	s.paths = rails.Paths(s.rails.Now, s.machine)
}

// nest takes the places of devices from NCCL's topology file. It says what became of the file; "" without one.
func (s *checker) nest() string {
	if s.NCCL == "" {
		return ""
	}
	if err := s.machine.NestFile(s.NCCL); err != nil {
		return "ignored: " + err.Error()
	}
	return "from NCCL's topology file " + s.NCCL
}

// nearest chooses the rails of a region of memory, as an engine does. Rails that stay on this host are among them.
func (s *checker) nearest(at rails.Place, used []float64) rails.Choice {
	return rails.Explain(s.rails.Now, s.paths, at, s.opt.MaxRails, used)
}

// place is where memory of a GPU lies.
func (s *checker) place(gpu string) rails.Place {
	return rails.Place{GPU: s.machine.Path(gpu), Node: topo.Number(s.Sys, "bus/pci/devices/"+gpu+"/numa_node", -1)}
}

// leaving are the rails of a list that leave this host.
func (s *checker) leaving(list []int) []int {
	return slices.DeleteFunc(slices.Clone(list), func(i int) bool { return s.rails.Now[i].Loopback || s.rails.Now[i].Host })
}

// named are the names of rails.
func (s *checker) named(list []int) (names []string) {
	for _, i := range list {
		names = append(names, rails.Name(s.rails.Now[i]))
	}
	return names
}

// described lists the devices that the providers would find on a machine of which only sysfs is known. address says which interfaces have
// an address, and which.
func (s *checker) described(words []string, address func(name string) (string, bool)) (found []provider.Device) {
	wants := func(word string) bool { return slices.Contains(words, word) }
	for _, r := range s.machine.RDMA {
		fabric := s.fabric(r)
		if !wants(provider.Auto) && !wants(fabric) {
			continue
		}
		d := provider.Device{Fabric: fabric, Name: r.Name, Hardware: true, NUMA: r.NUMA, Mbps: uint64(max(0, s.speed(r)))}
		if d.Fabric == "efa" {
			d.Name += "-rdm"
		}
		if r.State != "ACTIVE" && r.Class == "infiniband" {
			d.Waits, d.Subnet = "the port is "+r.State, "ib:fe80"
		}
		found = append(found, d)
	}
	if wants(provider.TCP) || wants(provider.Auto) && len(found) == 0 {
		for _, n := range s.machine.Nets() {
			if addr, ok := address(n.Name); ok {
				found = append(found, provider.Device{Fabric: "tcp", Name: n.Name, Addr: addr, Loopback: n.Loopback, NUMA: n.NUMA, Mbps: uint64(max(0, n.Mbps)), Subnet: n.Name})
			}
		}
	}
	if wants(provider.Auto) || wants(provider.SharedMemory) {
		found = append(found, provider.Device{Fabric: "sm", Name: "memory", Addr: "127.0.0.1", Loopback: true, Host: true, NUMA: -1})
	}
	return found
}

// chosenOf is the plugin's choice of the devices of a machine of which only sysfs is known.
func (s *checker) chosenOf(found []provider.Device) (out Rails, err error) {
	out.Found = found
	out.Now, out.Late, out.Left = rails.New(s.opt, nil, nil, func() []topo.Interface { return nil }).Choose(found, s.machine)
	if len(out.Now) == 0 {
		return out, fmt.Errorf("no usable device")
	}
	return out, nil
}

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"gorail/backend/topo"
)

// pcie looks at the way between GPUs and RDMA devices.
func (s *checker) pcie() {
	gpus := s.gpus()
	if len(gpus) == 0 {
		s.Pass("gpu-direct", "no NVIDIA GPU on the PCI bus")
		return
	}
	if len(s.machine.RDMA) == 0 {
		s.Pass("gpu-direct", "no RDMA device")
		return
	}
	s.gpuDirect()
	for _, g := range gpus {
		s.distances(g)
	}
}

func (s *checker) gpuDirect() {
	peermem := exists(s.Sys, "module/nvidia_peermem")
	open := strings.Contains(topo.Word(s.Proc, "driver/nvidia/version"), "Open Kernel Module")
	switch {
	case s.opt.HMEM == "off":
		s.Pass("gpu-direct", "option hmem=off: libfabric gets no GPU memory")
	case open || peermem:
		var ways []string
		if open {
			ways = append(ways, "dmabuf (open kernel modules)")
		}
		if peermem {
			ways = append(ways, "nvidia_peermem")
		}
		s.Pass("gpu-direct", "%s", strings.Join(ways, ", "))
	default:
		s.Warn("gpu-direct", "neither dmabuf (open kernel modules) nor nvidia_peermem: GPU memory goes through bounce buffers", "install the driver with open kernel modules, or load nvidia_peermem", "modprobe nvidia_peermem")
	}
}

// distances is one row of the matrix of GPUs and RDMA devices.
func (s *checker) distances(gpu string) {
	path := topo.PathOf(s.Sys, gpu)
	node := topo.Number(s.Sys, "bus/pci/devices/"+gpu+"/numa_node", -1)
	words := map[topo.Closeness]string{topo.SameSlot: "one device", topo.SameSwitch: "one switch", topo.SamePort: "one root port"}
	byWay := map[string][]string{}
	var order []string
	near := false
	for _, r := range s.machine.RDMA {
		c := topo.Between(path, r.PCI)
		way, ok := words[c]
		near = near || ok
		if !ok {
			way = "through the processor"
			if node >= 0 && r.NUMA >= 0 && node != r.NUMA {
				way = "through both processors"
			}
		}
		if byWay[way] == nil {
			order = append(order, way)
		}
		byWay[way] = append(byWay[way], r.Name)
	}
	var parts []string
	for _, way := range order {
		list := byWay[way]
		if len(list) > 8 {
			list = append(slices.Clone(list[:8]), fmt.Sprintf("and %d more", len(list)-8))
		}
		parts = append(parts, way+": "+strings.Join(list, " "))
	}
	text := "GPU " + gpu + ": " + strings.Join(parts, "; ")
	if !near {
		s.Warn("gpu-nic", text, "move a card below the GPU's PCIe switch, or accept the path through the processor")
		return
	}
	s.Pass("gpu-nic", "%s", text)
}

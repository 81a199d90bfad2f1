package doctor

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gorail/backend/topo"
)

// pcie looks at the way between GPUs and RDMA devices.
func (s *checker) pcie() {
	gpus := s.gpus()
	s.acs(gpus)
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

const (
	capACS = 0x0d
	capATS = 0x0f

	redirect = 0x04 | 0x08 // P2P request and completion redirect
	enable   = 0x8000
)

// extended finds the control register of an extended PCIe capability. Only root may read it: ok is false otherwise.
func extended(config []byte, id uint16) (control uint16, ok bool) {
	at := 0x100
	for range 48 { // a list in a circle must end
		if at < 0x100 || at+8 > len(config) {
			return 0, false
		}
		header := binary.LittleEndian.Uint32(config[at:])
		if uint16(header) == id {
			return binary.LittleEndian.Uint16(config[at+6:]), true
		}
		at = int(header >> 20 &^ 3)
	}
	return 0, false
}

func (s *checker) config(address string) []byte {
	b, _ := fs.ReadFile(s.Sys, "bus/pci/devices/"+address+"/config")
	return b
}

// acs finds bridges above GPUs and RDMA devices that send their traffic through the root complex, and devices with ATS.
func (s *checker) acs(gpus []string) {
	var paths []topo.PCIPath
	for _, g := range gpus {
		paths = append(paths, topo.PathOf(s.Sys, g))
	}
	for _, r := range s.machine.RDMA {
		paths = append(paths, r.PCI)
	}
	var bridges, ats []string
	readable := false
	for _, p := range paths {
		for i, address := range p {
			config := s.config(address)
			readable = readable || len(config) > 0x100
			if control, ok := extended(config, capACS); ok && control&redirect != 0 && i < len(p)-1 && !slices.Contains(bridges, address) {
				bridges = append(bridges, address)
			}
			if control, ok := extended(config, capATS); ok && control&enable != 0 && i == len(p)-1 {
				ats = append(ats, address)
			}
		}
	}
	suffix := ""
	if len(ats) > 0 {
		suffix = "; ATS is on at " + strings.Join(ats, ", ")
	}
	switch {
	case len(paths) == 0:
		s.Pass("acs", "no GPU or RDMA device")
	case !readable:
		s.Pass("acs", "not readable: only root may read PCIe capabilities")
	case len(bridges) > 0 && len(gpus) > 0 && len(s.machine.RDMA) > 0 && len(ats) == 0:
		s.Warn("acs", "ACS redirects traffic between devices through the processor at "+strings.Join(bridges, ", "), "switch ACS off in the BIOS, or at these bridges, unless virtual machines use the devices",
			"setpci -s "+bridges[0]+" ECAP_ACS+6.w=0000")
	default:
		s.Pass("acs", "no redirection in the way of GPUs and RDMA devices%s", suffix)
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

package doctor

import (
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

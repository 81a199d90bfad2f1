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
	open, peermem := s.gpuModules()
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

// gpuModules says by which modules of the kernel a device reaches memory of GPUs: NVIDIA's open ones, whose driver has dmabuf, and nvidia_peermem.
func (s *checker) gpuModules() (open, peermem bool) {
	return strings.Contains(topo.Word(s.Proc, "driver/nvidia/version"), "Open Kernel Module"), exists(s.Sys, "module/nvidia_peermem")
}

package doctor

import (
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// amazon is the PCI vendor of EFA devices.
const amazon = "0x1d0f"

// fabric is the fabric that drives a device, as package auto decides.
func (s *checker) fabric(r topo.RDMA) string {
	switch {
	case r.Class == "cxi":
		return "cxi"
	case topo.Word(s.Sys, "class/infiniband/"+r.Name+"/device/vendor") == amazon:
		return "efa"
	}
	return provider.Verbs
}

// needs says that the option provider, or hardware that auto finds, needs one of the fabrics.
func (s *checker) needs(fits func(fabric string) bool) bool {
	for _, word := range s.opt.Provider {
		if word != provider.Auto {
			if fits(word) {
				return true
			}
			continue
		}
		if slices.ContainsFunc(s.machine.RDMA, func(r topo.RDMA) bool { return fits(s.fabric(r)) }) {
			return true
		}
	}
	return false
}

func isVerbs(fabric string) bool { return fabric == provider.Verbs }

func isLibfabric(fabric string) bool {
	return !slices.Contains([]string{provider.Verbs, provider.SharedMemory, provider.TCP, provider.NVLink}, fabric)
}

// libraries loads what the plugin would load. It loads no library that is not needed, except to describe it.
func (s *checker) libraries() {
	if s.Try.Libfabric != nil {
		s.library("libfabric", "libfabric_path", "apt-get install libfabric1", s.needs(isLibfabric), func() (string, error) { return s.Try.Libfabric(s.opt.LibfabricPath) })
	}
	if s.Try.Verbs != nil {
		s.library("rdma-core", "ibverbs_path", "apt-get install libibverbs1 ibverbs-providers", s.needs(isVerbs), func() (string, error) { return s.Try.Verbs(s.opt.IbverbsPath) })
	}
	if s.Try.CUDA != nil {
		s.cuda()
	}
}

func (s *checker) library(id, option, install string, needed bool, load func() (string, error)) {
	text, err := load()
	remedy := "install a newer or the missing library, or give its path in option " + option
	switch {
	case err == nil:
		s.Pass(id, "%s", text)
	case needed:
		s.Fail(id, err.Error(), remedy, install)
	default:
		s.Pass(id, "%v (not needed here)", err)
	}
}

func (s *checker) cuda() {
	version := ""
	for line := range strings.Lines(topo.Word(s.Proc, "driver/nvidia/version")) {
		if _, v, ok := strings.Cut(line, "Kernel Module"); ok && version == "" {
			version = ", kernel module" + strings.TrimRight(v, "\n")
		}
	}
	err := s.Try.CUDA(s.opt.CUDAPath)
	switch {
	case err == nil:
		s.Pass("cuda", "%s loads%s", s.opt.CUDAPath, version)
	case len(s.gpus()) > 0:
		s.Warn("cuda", "GPU memory cannot be used: "+err.Error()+version, "give the container its GPUs and the driver's libraries, or install the driver", "docker run --gpus all ...")
	default:
		s.Pass("cuda", "%v (not needed here)", err)
	}
}

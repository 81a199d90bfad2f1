package doctor

import (
	"errors"
	"fmt"
	"strings"

	"gorail/backend/gpu"
)

// imexRemedies are what to do about the driver's refusals of memory with a fabric handle, by CUresult.
var imexRemedies = map[int][2]string{
	101: {"the IMEX daemon and this container must belong to one domain: look at its members", "nvidia-imex-ctl -N"},
	800: {"give the container a channel of its domain (Kubernetes: a ComputeDomain of NVIDIA's DRA driver)", "ls -l " + gpu.DefaultIMEX},
	801: {"start the IMEX daemon on the node, and on all nodes of its /etc/nvidia-imex/nodes_config.cfg", "systemctl status nvidia-imex; nvidia-imex-ctl -N"},
}

// nvlink looks at NVLink between hosts. Machines without it have none of these lines.
func (s *checker) nvlink() {
	if s.Try.NVML == nil {
		return
	}
	all, err := s.Try.NVML(s.opt.CUDAPath)
	there, usable := s.Try.Channels(s.opt.IMEXChannels)
	joined := s.fabricStates(all, err, len(there) > 0)
	if len(joined) == 0 {
		return
	}
	switch {
	case len(usable) > 0:
		s.Pass("imex-channel", "%s in %s can be opened", strings.Join(usable, ", "), s.opt.IMEXChannels)
	case len(there) > 0:
		s.Warn("imex-channel", fmt.Sprintf("%s in %s cannot be opened: memory of GPUs goes over the network, not over NVLink", strings.Join(there, ", "), s.opt.IMEXChannels),
			"give the container's user access to the device node", "ls -l "+s.opt.IMEXChannels)
	default:
		s.Warn("imex-channel", "there is no IMEX channel in "+s.opt.IMEXChannels+": memory of GPUs goes over the network, not over NVLink",
			"give the container a ComputeDomain (Kubernetes), or the device node; on the node load the driver with a channel", "docker run --device "+gpu.DefaultIMEX+"/channel0 ...", "modprobe nvidia NVreg_CreateImexChannel0=1")
	}
	if len(usable) == 0 {
		return
	}
	s.imexDomain(joined)
}

// fabricStates reports what GPUs have joined, and returns those that have. channels: there are device nodes of IMEX.
func (s *checker) fabricStates(all []gpu.FabricInfo, err error, channels bool) (joined []gpu.FabricInfo) {
	domains, waits := map[string]bool{}, []string(nil)
	for i := range all {
		switch f := &all[i]; {
		case f.Domain() != "":
			joined = append(joined, *f)
			domains[f.Domain()] = true
		case f.Asked != 0:
			waits = append(waits, fmt.Sprintf("GPU %d: NVML error %d", i, f.Asked))
		case f.State != gpu.FabricNone && (f.State != gpu.FabricJoined || f.Status != 0):
			waits = append(waits, fmt.Sprintf("GPU %d: %v, status %d", i, f.State, f.Status))
		}
	}
	const id = "nvlink-fabric"
	switch {
	case err != nil && channels:
		s.Warn(id, "IMEX channels are here, and NVML says nothing: "+err.Error(), "give the container the driver's utilities", "docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...")
	case len(waits) > 0:
		s.Warn(id, fmt.Sprintf("%d of %d GPUs have joined NVLink between hosts: %s", len(joined), len(all), strings.Join(waits, "; ")),
			"wait, or look at the fabric manager of the rack's switches; a GPU reset or a reboot begins joining anew", "nvidia-smi -q | grep -A6 Fabric")
	case len(domains) > 1:
		s.Warn(id, fmt.Sprintf("the GPUs are in %d clusters or cliques: only those of the first are used", len(domains)), "give all GPUs of a node one partition of the rack", "nvidia-smi -q | grep -A6 Fabric")
	case len(joined) > 0:
		s.Pass(id, "%d GPUs, cluster and clique %s: peers need the same", len(joined), joined[0].Domain())
	}
	return joined
}

// imexDomain makes memory with a fabric handle on a GPU: the daemon and its domain show in nothing else, from inside a container.
func (s *checker) imexDomain(joined []gpu.FabricInfo) {
	err := s.Try.FabricMemory(s.opt.CUDAPath, joined)
	if err == nil {
		s.Pass("imex-domain", "the driver makes memory with fabric handles, and exports them")
		return
	}
	remedy := [2]string{"look at the driver's log and at the IMEX daemon's", "nvidia-imex-ctl -N; dmesg | grep -i nvrm"}
	if f := (*gpu.Fault)(nil); errors.As(err, &f) && imexRemedies[f.Result][0] != "" {
		remedy = imexRemedies[f.Result]
	}
	s.Warn("imex-domain", "the driver gives no fabric handles: memory of GPUs goes over the network, not over NVLink: "+err.Error(), remedy[0], remedy[1])
}

package doctor

import (
	"gorail/backend/option"
	"gorail/backend/topo"
)

// checker has a host, its options and what the checks share.
type checker struct {
	*Report
	*Host
	opt     option.Options
	machine *topo.Machine
	rails   Rails
	railErr error
	paths   []topo.PCIPath   // of rails.Now
	agent   chan agentResult // nil: no agent is tried
}

// hasRDMA says that the kernel has RDMA devices that pin memory.
func (s *checker) hasRDMA() bool { return len(s.machine.RDMA) > 0 }

// agentResult is what a NIXL agent said.
type agentResult struct {
	text string
	err  error
}

package doctor

import (
	"gorail/backend/option"
	"gorail/backend/topo"
)

// scene is a host, its options and what the checks share.
type scene struct {
	*Report
	*Host
	opt     option.Options
	machine *topo.Machine
	rails   Rails
	railErr error
}

// hasRDMA says that the kernel has RDMA devices that pin memory.
func (s *scene) hasRDMA() bool { return len(s.machine.RDMA) > 0 }

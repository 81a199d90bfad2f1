package rails

import (
	"unsafe"

	"gorail/backend/rail"
	"gorail/backend/topo"
)

// findNodes enables NodeOf if the rails are on several NUMA nodes and the kernel reports the node of memory.
func (s *Set) findNodes() {
	if !rail.SeveralNodes(s.Devices()) {
		return
	}
	var here uint64 = 1
	if _, err := topo.NodeOf(uint64(uintptr(unsafe.Pointer(&here))), 8); err != nil {
		s.log.Info("NUMA node of memory cannot be read: rails near the memory are not preferred (container: needs CAP_SYS_NICE)", "err", err)
		return
	}
	s.Nodes = topo.NodeOf
}

// NodeOf is the NUMA node of memory; -1: unknown.
func (s *Set) NodeOf(addr, length uint64) int {
	if s.Nodes == nil {
		return -1
	}
	node, err := s.Nodes(addr, length)
	if err != nil {
		return -1
	}
	return node
}

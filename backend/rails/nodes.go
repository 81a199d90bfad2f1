package rails

import (
	"unsafe"

	"gorail/backend/rail"
	"gorail/backend/topo"
)

// findNodes makes the set look where memory is, if its rails are on several NUMA nodes and the kernel tells.
func (s *Set) findNodes() {
	if !rail.SeveralNodes(s.Devices()) {
		return
	}
	var here uint64 = 1
	if _, err := topo.NodeOf(uint64(uintptr(unsafe.Pointer(&here))), 8); err != nil {
		s.log.Info("rails near the memory are not preferred: its NUMA node is not to be had (in a container: CAP_SYS_NICE)", "err", err)
		return
	}
	s.Nodes = topo.NodeOf
}

// NodeOf is the NUMA node of memory, -1 = unknown.
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

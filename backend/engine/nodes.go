package engine

import (
	"unsafe"

	"gorail/backend/rail"
	"gorail/backend/topo"
)

// findNodes makes the engine look where memory is, if its rails are on several NUMA nodes and the kernel tells.
func (e *Engine) findNodes() {
	if !rail.SeveralNodes(e.devices()) {
		return
	}
	var here uint64 = 1
	if _, err := topo.NodeOf(uint64(uintptr(unsafe.Pointer(&here))), 8); err != nil {
		e.log.Info("rails near the memory are not preferred: its NUMA node is not to be had (in a container: CAP_SYS_NICE)", "err", err)
		return
	}
	e.nodes = topo.NodeOf
}

// nodeOf is the NUMA node of memory, -1 = unknown.
func (e *Engine) nodeOf(addr, length uint64) int {
	if e.nodes == nil {
		return -1
	}
	node, err := e.nodes(addr, length)
	if err != nil {
		return -1
	}
	return node
}

// node is the one that all regions are on, -1 = several, or unknown.
func node(regions []*region) int {
	for _, g := range regions {
		if g.node != regions[0].node {
			return -1
		}
	}
	return regions[0].node
}

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

// nearNode notes which rails are near a region of the host's memory: on its node.
func (e *Engine) nearNode(r *region) {
	node := e.nodeOf(r.Addr, r.Len)
	for i, rl := range e.rails {
		if rail.Near(rl.Device(), node) {
			r.near |= 1 << i
		}
	}
}

// nearGPU notes which of the rails that reach a GPU's memory by themselves are nearest to it on the PCI bus; none where all are alike, or
// nobody knows.
func (e *Engine) nearGPU(r *region) {
	nearest, farthest := topo.UnknownPath, topo.SameSlot
	for i := range e.rails {
		if g := r.onGPU(i); g != nil {
			nearest, farthest = min(nearest, g.Distance()), max(farthest, g.Distance())
		}
	}
	for i := range e.rails {
		if g := r.onGPU(i); g != nil && nearest < farthest && g.Distance() == nearest {
			r.near |= 1 << i
		}
	}
}

// nearRails are those that are near all of some regions, a bit each.
func nearRails(regions []*region) uint64 {
	near := ^uint64(0)
	for _, g := range regions {
		near &= g.near
	}
	return near
}

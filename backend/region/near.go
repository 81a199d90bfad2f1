package region

import (
	"gorail/backend/rail"
	"gorail/backend/topo"
)

// nearNode notes which rails are near a region of the host's memory: on its node.
func (m *Registry) nearNode(r *Region) {
	node := m.set.NodeOf(r.Addr, r.Len)
	for i, rl := range m.set.List {
		if rail.Near(rl.Device(), node) {
			r.near |= 1 << i
		}
	}
}

// nearGPU notes which of the rails that reach a GPU's memory by themselves are nearest to it on the PCI bus; none where all are alike, or
// nobody knows.
func (m *Registry) nearGPU(r *Region) {
	nearest, farthest := topo.UnknownPath, topo.SameSlot
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil {
			nearest, farthest = min(nearest, g.Distance()), max(farthest, g.Distance())
		}
	}
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil && nearest < farthest && g.Distance() == nearest {
			r.near |= 1 << i
		}
	}
}

// NearRails are those that are near all of some regions, a bit each.
func NearRails(regions []*Region) uint64 {
	near := ^uint64(0)
	for _, g := range regions {
		near &= g.near
	}
	return near
}

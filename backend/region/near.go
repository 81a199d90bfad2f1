package region

import (
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// nearNode records which rails are near a region of host memory: those on the same NUMA node.
func (m *Registry) nearNode(r *Region) {
	node := m.set.NodeOf(r.Addr, r.Len)
	for i, rl := range m.set.List {
		if rails.Near(rl.Device(), node) {
			r.near.Or(1 << i)
		}
	}
}

// nearGPU records the rails nearest to GPU memory on the PCI bus, among the rails that reach that memory directly. It records
// none if all distances are equal or unknown.
func (m *Registry) nearGPU(r *Region) {
	nearest, farthest := topo.UnknownPath, topo.SameSlot
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil {
			nearest, farthest = min(nearest, g.Distance()), max(farthest, g.Distance())
		}
	}
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil && nearest < farthest && g.Distance() == nearest {
			r.near.Or(1 << i)
		}
	}
}

// NearRails returns the rails that are near all of the regions, as a bit mask.
func NearRails(regions []*Region) uint64 {
	near := ^uint64(0)
	for _, g := range regions {
		near &= g.near.Load()
	}
	return near
}

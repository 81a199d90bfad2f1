package transfer

import (
	"unsafe"

	"gorail/backend/plan"
	"gorail/backend/region"
)

// Desc is one element of a descriptor list. MD is the shim's metadata object.
type Desc = plan.Desc

// MDRegion is the offset of the region id in the shim's metadata object: GR_MD_REGION. Package plugin compares both.
const MDRegion = 16

// regionOf returns the region id in the metadata object of a descriptor.
func regionOf(d *Desc) uint64 {
	if d.MD == nil {
		return 0
	}
	return *(*uint64)(unsafe.Add(d.MD, MDRegion))
}

// List is a descriptor list. The caller does not change it while a transfer is prepared.
type List struct {
	Descs   []Desc
	Regions []uint64 // the region of each descriptor; nil: the metadata object holds it
}

// Own makes a list of n empty descriptors, for inner transfers.
func Own(n int) List { return List{make([]Desc, n), make([]uint64, n)} }

// Set fills one element.
func (l List) Set(i int, region, addr, length uint64) {
	l.Descs[i], l.Regions[i] = Desc{Addr: addr, Len: length}, region
}

// Region returns the region id of element i.
func (l *List) Region(i int) uint64 {
	if l.Regions != nil {
		return l.Regions[i]
	}
	return regionOf(&l.Descs[i])
}

// regionSet collects the regions of a list, in order of first use. Of a region that is registered in slices it has the slices,
// because the core knows only those.
type regionSet struct {
	list []*region.Region

	last    known
	seen    map[uint64]*region.Region // all regions, by the ids that descriptors have; nil: only the last one so far
	windows plan.Windows              // where the last descriptor of a region was
}

// known is a region of the set, with the id that descriptors have: in a loopback another one than the region's.
type known struct {
	id     uint64
	region *region.Region
}

// has reports whether the set has the region of that id, and makes it the last one.
func (s *regionSet) has(id uint64) bool {
	if s.last.region != nil && s.last.id == id {
		return true
	}
	g := s.seen[id]
	if g == nil {
		return false
	}
	s.last = known{id, g}
	return true
}

// add adds a region by an id that the set does not have, and makes it the last one.
func (s *regionSet) add(id uint64, g *region.Region) {
	if id != g.ID { // loopback: several ids may have one region
		if !s.has(g.ID) {
			s.add(g.ID, g)
		}
		s.name(id, g)
		return
	}
	s.name(id, g)
	if g.Slices != nil {
		s.windows.Around = s.around
		s.list = append(s.list, g.Slices...)
	} else {
		s.list = append(s.list, g)
	}
}

// around is a plan.Around.
func (s *regionSet) around(md unsafe.Pointer, addr uint64) plan.Window {
	if md == nil {
		return plan.Window{}
	}
	g := s.last.region
	if id := regionOf(&Desc{MD: md}); id != s.last.id {
		g = s.seen[id]
	}
	if g == nil || !g.Contains(addr, 0) {
		return plan.Window{}
	}
	return windowOver(md, g, addr)
}

// name notes the region of an id, and makes it the last one.
func (s *regionSet) name(id uint64, g *region.Region) {
	if s.last.region != nil && s.seen == nil {
		s.seen = map[uint64]*region.Region{s.last.id: s.last.region}
		s.windows.Several()
	}
	s.last = known{id, g}
	if s.seen == nil {
		return
	}
	if s.seen[id] = g; len(s.seen) == plan.Known {
		s.windows.Around = s.around
	}
}

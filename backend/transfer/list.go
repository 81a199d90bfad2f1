package transfer

import (
	"unsafe"

	"gorail/backend/region"
)

// Desc is one element of a descriptor list, in the layout of nixlMetaDesc. MD is the shim's metadata object.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

// MDRegion is the offset of the region id in the shim's metadata object: GR_MD_REGION. Package plugin compares both.
const MDRegion = 16

func (d *Desc) region() uint64 {
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

// region returns the region id of element i.
func (l *List) region(i int) uint64 {
	if l.Regions != nil {
		return l.Regions[i]
	}
	return l.Descs[i].region()
}

// regionSet collects the regions of a list, in order of first use. Of a region that is registered in slices it has the slices,
// because the core knows only those.
type regionSet struct {
	list []*region.Region

	last   known
	recent *[recentIDs]known         // by the low bits of the id, which is a small number; nil: only one region so far
	seen   map[uint64]*region.Region // all regions; nil: as above
}

// known is a region of the set, with the id that descriptors have: in a loopback another one than the region's.
type known struct {
	id     uint64
	region *region.Region
}

// recentIDs regions are found without a search, 4 KiB. A list may go through the regions of all layers again and again.
const recentIDs = 256

// has reports whether the set has the region of that id, and makes it the last one.
func (s *regionSet) has(id uint64) bool {
	if s.last.region != nil && s.last.id == id {
		return true
	}
	if s.recent == nil {
		return false
	}
	at := &s.recent[id%recentIDs]
	if at.region == nil || at.id != id {
		g := s.seen[id]
		if g == nil {
			return false
		}
		*at = known{id, g}
	}
	s.last = *at
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
		s.list = append(s.list, g.Slices...)
	} else {
		s.list = append(s.list, g)
	}
}

// name notes the region of an id, and makes it the last one.
func (s *regionSet) name(id uint64, g *region.Region) {
	if s.last.region != nil && s.recent == nil {
		s.recent, s.seen = &[recentIDs]known{}, map[uint64]*region.Region{s.last.id: s.last.region}
		s.recent[s.last.id%recentIDs] = s.last
	}
	s.last = known{id, g}
	if s.recent != nil {
		s.recent[id%recentIDs], s.seen[id] = s.last, g
	}
}

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

	last    known
	seen    map[uint64]*region.Region // all regions, by the ids that descriptors have; nil: only the last one so far
	windows *[windows]window          // where the last descriptor of a region was, by the metadata object; nil: as above
}

// known is a region of the set, with the id that descriptors have: in a loopback another one than the region's.
type known struct {
	id     uint64
	region *region.Region
}

// The windows of about 200 regions are found without a search, in 8 KiB. A list may go through the regions of all layers again
// and again. A window is at the place of its hash or at one of the next ones. With a single place, 80 regions took 50 ns a
// descriptor and not 10: a third of them collided.
const (
	windows = 256
	places  = 4
)

// place returns the first place of a metadata object's window. Such objects have 48 bytes or more.
func place(md unsafe.Pointer) uintptr { return uintptr(md) >> 4 * 0x9e3779b97f4a7c15 >> 56 }

// window sets w to the window of a metadata object, if it is at hand.
func (s *regionSet) window(md unsafe.Pointer, w *window) bool {
	if s.windows == nil || md == nil {
		return false
	}
	for first, i := place(md), uintptr(0); i < places; i++ {
		if at := &s.windows[(first+i)%windows]; at.md == md {
			w.md, w.addr, w.size, w.index = at.md, at.addr, at.size, at.index
			return true
		}
	}
	return false
}

// keep notes the window of the last descriptor.
func (s *regionSet) keep(w *window) {
	if s.windows == nil || w.md == nil {
		return
	}
	first := place(w.md)
	to := first
	for i := range uintptr(places) {
		if at := &s.windows[(first+i)%windows]; at.md == w.md || at.md == nil {
			to = first + i
			break
		}
	}
	s.windows[to%windows] = *w
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
		s.list = append(s.list, g.Slices...)
	} else {
		s.list = append(s.list, g)
	}
}

// name notes the region of an id, and makes it the last one.
func (s *regionSet) name(id uint64, g *region.Region) {
	if s.last.region != nil && s.seen == nil {
		s.seen, s.windows = map[uint64]*region.Region{s.last.id: s.last.region}, new([windows]window)
	}
	s.last = known{id, g}
	if s.seen != nil {
		s.seen[id] = g
	}
}

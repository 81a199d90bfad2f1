package plan

import "unsafe"

// Desc is one element of a descriptor list, in the layout of nixlMetaDesc. MD is the shim's metadata object.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

// Window is the part of a region that a piece may be in: the region, or one of its slices. It does not run past the end of the
// address space.
type Window struct {
	MD         unsafe.Pointer // the metadata object of the region; nil: unknown, and nothing is in the window
	Addr, Size uint64         // in bytes
	Index      uint32         // of the region: LRegion or RRegion of an operation
}

// Windows are the windows of one side of a transfer: where the last piece was, and where the last one of each region was.
type Windows struct {
	Last   Window
	Around Around           // how to find others of known regions; nil: not at all
	known  *[windows]Window // nil: only one region so far
}

// Around returns the window of a known region around an address; without an MD: there is none. Several threads may call it at once.
type Around func(md unsafe.Pointer, addr uint64) Window

// Known is the number of regions whose windows Windows surely has at hand, or nearly so. With more regions Around pays.
const Known = 150

// The windows of about 200 regions are found without a search, in 8 KiB. A list may go through the regions of all layers again
// and again. A window is at the place of its hash or at one of the next ones. With a single place, 80 regions took 50 ns a
// descriptor and not 10: a third of them collided.
const (
	windows = 256
	places  = 4
)

// place returns the first place of a metadata object's window. Such objects have 48 bytes or more.
func place(md unsafe.Pointer) uintptr { return uintptr(md) >> 4 * 0x9e3779b97f4a7c15 >> 56 }

// Several makes room for the windows of several regions.
func (s *Windows) Several() { s.known = new([windows]Window) }

// find returns the window of a metadata object; nil: it is not at hand.
func (s *Windows) find(md unsafe.Pointer) *Window {
	if s.known == nil || md == nil {
		return nil
	}
	for first, i := place(md), uintptr(0); i < places; i++ {
		if at := &s.known[(first+i)%windows]; at.MD == md {
			return at
		}
	}
	return nil
}

// of is find, but looks at the last window first.
func (s *Windows) of(md unsafe.Pointer) *Window {
	if md == s.Last.MD {
		return &s.Last
	}
	return s.find(md)
}

// has reports that a descriptor is inside a window.
func (w *Window) has(d *Desc) bool {
	at := d.Addr - w.Addr
	return w.MD == d.MD && at <= w.Size && d.Len <= w.Size-at
}

// turn makes sure that the window of a descriptor is at hand; false: it is in none.
func (s *Windows) turn(d *Desc) bool {
	if w := s.of(d.MD); w != nil && w.has(d) {
		return true
	}
	if s.Around != nil {
		if w := s.Around(d.MD, d.Addr); w.has(d) {
			s.Last = w
			return true
		}
	}
	return false
}

// Keep notes the window of the last piece.
func (s *Windows) Keep(w Window) {
	s.Last = w
	if s.known == nil || w.MD == nil {
		return
	}
	first := place(w.MD)
	to := first
	for i := range uintptr(places) {
		if at := &s.known[(first+i)%windows]; at.MD == w.MD || at.MD == nil {
			to = first + i
			break
		}
	}
	s.known[to%windows] = w
}

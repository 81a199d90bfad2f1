package transfer

import "gorail/backend/core"

import "unsafe"

// windowCache has the windows of one side of a transfer: where the last piece was, and where the last one of each region was.
type windowCache struct {
	Last   core.Window
	Around windowFinder              // how to find others of known regions; nil: not at all
	known  *[windowSlots]core.Window // nil: only one region so far
}

// windowFinder returns the window of a known region around an address; without an MD: there is none. Several threads may call it at once.
type windowFinder func(md unsafe.Pointer, addr uint64) core.Window

// knownWindows is the number of regions whose windows a windowCache surely has at hand, or nearly so. With more regions Around pays.
const knownWindows = 150

// The windows of about 200 regions are found without a search, in 8 KiB. A list may go through the regions of all layers again
// and again. A window is at the place of its hash or at one of the next ones. With a single place, 80 regions took 50 ns a
// descriptor and not 10: a third of them collided.
const (
	windowSlots  = 256
	windowPlaces = 4
)

// place returns the first place of a metadata object's window. Such objects have 48 bytes or more.
func windowPlace(md unsafe.Pointer) uintptr { return uintptr(md) >> 4 * 0x9e3779b97f4a7c15 >> 56 }

// Several makes room for the windows of several regions.
func (s *windowCache) Several() { s.known = new([windowSlots]core.Window) }

// find returns the window of a metadata object; nil: it is not at hand.
func (s *windowCache) find(md unsafe.Pointer) *core.Window {
	if s.known == nil || md == nil {
		return nil
	}
	for first, i := windowPlace(md), uintptr(0); i < windowPlaces; i++ {
		if at := &s.known[(first+i)%windowSlots]; at.MD == md {
			return at
		}
	}
	return nil
}

// of is find, but looks at the last window first.
func (s *windowCache) of(md unsafe.Pointer) *core.Window {
	if md == s.Last.MD {
		return &s.Last
	}
	return s.find(md)
}

// inside reports that a descriptor is inside a window.
func inside(w *core.Window, d *core.Desc) bool {
	at := d.Addr - w.Addr
	return w.MD == d.MD && at <= w.Size && d.Len <= w.Size-at
}

// turn makes sure that the window of a descriptor is at hand; false: it is in none.
func (s *windowCache) turn(d *core.Desc) bool {
	if w := s.of(d.MD); w != nil && inside(w, d) {
		return true
	}
	if s.Around != nil {
		if w := s.Around(d.MD, d.Addr); inside(&w, d) {
			s.Last = w
			return true
		}
	}
	return false
}

// Keep notes the window of the last piece.
func (s *windowCache) Keep(w core.Window) {
	s.Last = w
	if s.known == nil || w.MD == nil {
		return
	}
	first := windowPlace(w.MD)
	to := first
	for i := range uintptr(windowPlaces) {
		if at := &s.known[(first+i)%windowSlots]; at.MD == w.MD || at.MD == nil {
			to = first + i
			break
		}
	}
	s.known[to%windowSlots] = w
}

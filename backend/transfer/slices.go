package transfer

import (
	"math"

	"gorail/backend/plan"
	"gorail/backend/region"
)

// note adds a region of a list to the set. A region that is registered in slices adds its slices, because the core knows only
// those.
func (v *resolver) note(set *regionSet, g *region.Region) {
	if g.Slices == nil {
		set.add(g)
		return
	}
	if v.sliced == nil {
		v.sliced = map[uint64]*region.Region{}
	}
	if v.sliced[g.ID] == nil {
		v.sliced[g.ID] = g
		for _, p := range g.Slices {
			set.add(p)
		}
	}
}

// slicer returns the pairs of a checked list, cut at slice borders of either region. Lists without sliced regions do not use
// it.
type slicer struct {
	v             *resolver
	i             int    // index of the pair
	off           uint64 // bytes of the pair already returned
	local, remote lookup
}

// lookup caches the last lookup of one side: a slice, or an unsliced region.
type lookup struct {
	id          uint64 // region id
	start, size uint64
	number      uint32 // index in the core's table
}

// at returns the core's index of the slice or region at an address, and the bytes left in it.
func (s *lookup) at(v *resolver, id, addr uint64) (number uint32, room uint64) {
	if s.id != id || addr-s.start >= s.size {
		s.id, s.start, s.size, s.number = id, 0, math.MaxUint64, region.Index(id)
		if g := v.sliced[id]; g != nil {
			p := g.Slices[g.SliceOf(addr, g.Slice)]
			s.start, s.size, s.number = p.Addr, p.Len, region.Index(p.ID)
		}
	}
	return s.number, s.start + s.size - addr
}

func (s *slicer) next() plan.Piece {
	l, r := &s.v.local.Descs[s.i], &s.v.remote.Descs[s.i]
	rid := s.v.remote.region(s.i)
	if s.v.self != nil {
		rid = s.v.self[rid].ID
	}
	p := plan.Piece{Local: l.Addr + s.off, Remote: r.Addr + s.off}
	var here, there uint64
	p.LRegion, here = s.local.at(s.v, s.v.local.region(s.i), p.Local)
	p.RRegion, there = s.remote.at(s.v, rid, p.Remote)
	p.Len = min(l.Len-s.off, here, there)
	if s.off += p.Len; s.off == l.Len {
		s.i, s.off = s.i+1, 0
	}
	return p
}

// count returns the number of pieces.
func (s *slicer) count() (n int) {
	for s.i, s.off = 0, 0; s.i < len(s.v.local.Descs); n++ {
		s.next()
	}
	return n
}

// pieces implements plan.Source.
func (s *slicer) pieces(first int, dst []plan.Piece) {
	if first == 0 {
		s.i, s.off = 0, 0
	}
	for k := range dst {
		dst[k] = s.next()
	}
}

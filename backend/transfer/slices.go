package transfer

import (
	"math"

	"gorail/backend/plan"
	"gorail/backend/region"
)

// note enters a region of a list: what the core has of it.
func (v *resolver) note(set *regionSet, g *region.Region) {
	if g.Parts == nil {
		set.add(g)
		return
	}
	if v.sliced == nil {
		v.sliced = map[uint64]*region.Region{}
	}
	if v.sliced[g.ID] == nil {
		v.sliced[g.ID] = g
		for _, p := range g.Parts {
			set.add(p)
		}
	}
}

// slicer gives the pairs of a checked list, cut where a part of either region ends. Lists that name no region in slices
// go without it.
type slicer struct {
	v             *resolver
	i             int    // the pair
	off           uint64 // of it, given already
	local, remote side
}

// side is what one side's address looked at last is in: a part, or a region that is one.
type side struct {
	id          uint64 // of the region
	start, size uint64
	number      uint32 // in the core's table
}

// at gives the core's number of what an address is in, and how many bytes are left of that.
func (s *side) at(v *resolver, id, addr uint64) (number uint32, room uint64) {
	if s.id != id || addr-s.start >= s.size {
		s.id, s.start, s.size, s.number = id, 0, math.MaxUint64, region.Index(id)
		if g := v.sliced[id]; g != nil {
			p := g.Parts[g.SliceOf(addr, g.Slice)]
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

// count is how many pieces there are.
func (s *slicer) count() (n int) {
	for s.i, s.off = 0, 0; s.i < len(s.v.local.Descs); n++ {
		s.next()
	}
	return n
}

// pieces is a plan.Source.
func (s *slicer) pieces(first int, dst []plan.Piece) {
	if first == 0 {
		s.i, s.off = 0, 0
	}
	for k := range dst {
		dst[k] = s.next()
	}
}

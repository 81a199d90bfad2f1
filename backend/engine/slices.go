package engine

import (
	"math"

	"gorail/backend/plan"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// A range above e.slice, or the peer's, is several regions, its parts, each with its own entry in the core's table, its own
// registrations, keys and revocations, and one more that is their name: what the agent knows. Transfers have the parts alone.

// sliceSize is the most bytes that are registered as one; 0: any.
func (e *Engine) sliceSize() uint64 {
	most := e.opt.MRMax
	for _, r := range e.rails {
		if own := r.Can.MaxMR; e.opt.MRMax == 0 && own > 0 && (most == 0 || own < most) {
			most = own
		}
	}
	if most == 0 {
		return 0
	}
	return max(most-most%wire.SliceUnit, wire.MinSlice)
}

// enterSliced finds or enters a local range, with its parts: see enterLocal. Under localMu.
func (e *Engine) enterSliced(rng wire.Range) (r *region, fresh []*region, err error) {
	if r := e.local[rng]; r != nil {
		r.refs++
		return r, nil, nil
	}
	r = &region{Range: rng, refs: 1, ready: make(chan struct{}), holders: map[*target]struct{}{}, slice: e.slice}
	parts, err := rng.Slices(e.slice)
	if err != nil {
		return nil, nil, status.Errorf(status.ErrInvalidParam, "register %#x+%d (option mr_max): %w", rng.Addr, rng.Len, err)
	}
	for i := 0; i < len(parts) && len(parts) > 1 && err == nil; i++ {
		var p *region
		var more []*region
		if p, more, err = e.enterSliced(parts[i]); err == nil {
			r.parts, fresh = append(r.parts, p), append(fresh, more...)
		}
	}
	if err == nil {
		err = e.regions.add(r)
	}
	if err != nil {
		for _, p := range r.parts {
			if p.refs--; p.refs == 0 { // nobody has seen it
				delete(e.local, p.Range)
				e.regions.unpin(p)
			}
		}
		return nil, nil, err
	}
	e.local[rng] = r
	return r, append(fresh, r), nil
}

// leaveLocal takes out a range without registrations, and gives the regions that end with it. Under localMu.
func (e *Engine) leaveLocal(r *region) []*region {
	delete(e.local, r.Range)
	gone := []*region{r}
	for _, p := range r.parts {
		if p.refs--; p.refs == 0 {
			delete(e.local, p.Range)
			gone = append(gone, p)
		}
	}
	return gone
}

// enter finds or enters a range of the peer's, with its parts. Under mu.
func (r *remote) enter(rng wire.Range) (*region, error) {
	if g := r.regions[rng]; g != nil {
		g.refs++
		return g, nil
	}
	g := &region{Range: rng, remote: r, refs: 1, slice: r.blob.Slice}
	parts, err := rng.Slices(g.slice)
	if err != nil {
		return nil, status.Errorf(status.ErrInvalidParam, "metadata of agent %q: %w", r.name, err)
	}
	for i := 0; i < len(parts) && len(parts) > 1 && err == nil; i++ {
		var p *region
		if p, err = r.enter(parts[i]); err == nil {
			g.parts = append(g.parts, p)
		}
	}
	if err == nil {
		err = r.e.regions.add(g)
	}
	if err != nil {
		for _, p := range g.parts {
			r.leave(p)
		}
		return nil, err
	}
	r.regions[rng] = g
	if g.parts == nil {
		r.want(g)
	}
	return g, nil
}

// leave ends one use of a range of the peer's. Under mu.
func (r *remote) leave(g *region) {
	if g.refs--; g.refs > 0 {
		return
	}
	delete(r.regions, g.Range)
	r.retire(g)
	for _, p := range g.parts {
		r.leave(p)
	}
}

// note enters a region of a list: what the core has of it.
func (v *resolver) note(set *regionSet, g *region) {
	if g.parts == nil {
		set.add(g)
		return
	}
	if v.sliced == nil {
		v.sliced = map[uint64]*region{}
	}
	if v.sliced[g.id] == nil {
		v.sliced[g.id] = g
		for _, p := range g.parts {
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
		s.id, s.start, s.size, s.number = id, 0, math.MaxUint64, index(id)
		if g := v.sliced[id]; g != nil {
			p := g.parts[g.SliceOf(addr, g.slice)]
			s.start, s.size, s.number = p.Addr, p.Len, index(p.id)
		}
	}
	return s.number, s.start + s.size - addr
}

func (s *slicer) next() plan.Piece {
	l, r := &s.v.local[s.i], &s.v.remote[s.i]
	rid := r.region()
	if s.v.self != nil {
		rid = s.v.self[rid].id
	}
	p := plan.Piece{Local: l.Addr + s.off, Remote: r.Addr + s.off}
	var here, there uint64
	p.LRegion, here = s.local.at(s.v, l.region(), p.Local)
	p.RRegion, there = s.remote.at(s.v, rid, p.Remote)
	p.Len = min(l.Len-s.off, here, there)
	if s.off += p.Len; s.off == l.Len {
		s.i, s.off = s.i+1, 0
	}
	return p
}

// count is how many pieces there are.
func (s *slicer) count() (n int) {
	for s.i, s.off = 0, 0; s.i < len(s.v.local); n++ {
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

package transfer

import (
	"slices"

	"gorail/backend/errcode"
	"gorail/backend/rail"
	"gorail/backend/region"
)

// classify records the memory types of both sides and decides what carries the transfer. A bulk rail copies GPU memory whole.
// Other rails carry GPU memory that is registered on them here; ready checks the peer's side. Staging carries the rest.
func (v *resolver) classify(t *Transfer) error {
	mixed := false // regions differ in memory type or in GPU
	for i, list := range [][]*region.Region{v.locals.list, v.remotes.list} {
		for _, g := range list {
			if g.Mem != list[0].Mem || g.Mem == region.VRAM && g.Dev != list[0].Dev {
				mixed = true
			}
			t.gpu = t.gpu || g.Mem == region.VRAM
		}
		if i == 0 {
			t.class.LocalMem, t.class.LocalDev = list[0].Mem, list[0].Dev
		} else {
			t.class.RemoteMem, t.class.RemoteDev = list[0].Mem, list[0].Dev
		}
	}
	switch {
	case !t.gpu:
	case t.class.GPUs() && !mixed && v.peer.copier(v.locals.list) >= 0:
		t.bulk = true
	default:
		t.staged = mixed && v.peer.MapsRings() || !v.peer.carries(v.locals.list)
	}
	if t.staged {
		t.bulk = false
		if t.inner != nil {
			return errcode.NoPath.Errorf("prepare: %w", ErrUnreachable)
		}
	}
	return nil
}

// copier returns the index of our bulk rail to that peer on which all of our regions are registered; -1: none.
func (p *Peer) copier(locals []*region.Region) int {
	for _, pair := range p.Pairs {
		if own := p.tab.Rails.List[pair.Own]; own.Can.Bulk && hasAll(own, locals) {
			return pair.Own
		}
	}
	return -1
}

// carries reports whether a rail to that peer, other than a bulk rail, has all of our regions.
func (p *Peer) carries(locals []*region.Region) bool {
	return slices.ContainsFunc(p.Pairs, func(pair rail.Pair) bool {
		own := p.tab.Rails.List[pair.Own]
		return !own.Can.Bulk && hasAll(own, locals)
	})
}

// MapsRings reports whether one of our rails copies to GPU memory of the peer.
func (p *Peer) MapsRings() bool {
	return slices.ContainsFunc(p.Pairs, func(pair rail.Pair) bool { return p.tab.Rails.List[pair.Own].Can.Bulk })
}

package transfer

import (
	"slices"

	"gorail/backend/errcode"
	"gorail/backend/rails"
	"gorail/backend/region"
)

// classify records the memory types of both sides and decides what carries the transfer. A bulk rail copies GPU memory whole.
// Other rails carry GPU memory that is registered on them here; ready checks the peer's side. Staging carries the rest.
func (v *resolver) classify(t *Transfer) error {
	for i, list := range [][]*region.Region{v.locals.list, v.remotes.list} {
		for _, g := range list {
			if g.Mem != list[0].Mem || g.Mem == region.VRAM && g.Dev != list[0].Dev {
				t.mixed = true
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
	case t.class.GPUs() && !t.mixed && v.peer.copier(v.locals.list) >= 0:
		t.bulk = true
	default:
		t.staged = t.mixed && v.peer.MapsRings() || !v.peer.carries(v.locals.list, v.out.Bytes, t.mixed)
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
	for _, pair := range p.Pairs() {
		if own := p.tab.Rails.List[pair.Own]; own.Can.Bulk && hasAll(own, locals) {
			return pair.Own
		}
	}
	return -1
}

// carries reports whether a rail to that peer, other than a bulk rail, has all of our regions, and takes a transfer of GPU memory
// of that size.
func (p *Peer) carries(locals []*region.Region, bytes uint64, mixed bool) bool {
	return slices.ContainsFunc(p.Pairs(), func(pair rails.Pair) bool {
		own := p.tab.Rails.List[pair.Own]
		return !own.Can.Bulk && hasAll(own, locals) && (own.Can.Bounces == 0 || p.bounces(own, bytes, mixed))
	})
}

// bounces reports whether a rail with bounce buffers of its own takes a transfer of GPU memory. Others are staged: large ones,
// because staging divides them among all rails, and those within an agent, which need no bounce buffer.
func (p *Peer) bounces(own *rails.Rail, bytes uint64, mixed bool) bool {
	return bytes <= own.Can.Bounces && !mixed && !p.Self
}

// MapsRings reports whether one of our rails copies to GPU memory of the peer.
func (p *Peer) MapsRings() bool {
	return slices.ContainsFunc(p.Pairs(), func(pair rails.Pair) bool { return p.tab.Rails.List[pair.Own].Can.Bulk })
}

package transfer

import (
	"slices"

	"gorail/backend/core"
	"gorail/backend/rail"
	"gorail/backend/region"
	"gorail/backend/status"
)

// classify finds what memory a transfer is between, and what carries it: a rail that copies GPUs' memory whole, rails that have it
// registered as any other (or may have at the peer's: ready looks), or none, which is staging.
func (v *resolver) classify(t *Transfer) error {
	mixed := false // of several kinds, or GPUs
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
			return status.Errorf(status.ErrNotSupported, "prepare: %w", ErrUnreachable)
		}
	}
	return nil
}

// copier is the rail that copies memory of GPUs whole, to that peer, and has all of ours; -1: there is none.
func (p *Peer) copier(locals []*region.Region) int {
	for _, pair := range p.Pairs {
		if own := p.tab.Rails.List[pair.Own]; own.Can.Bulk && hasAll(own, locals) {
			return pair.Own
		}
	}
	return -1
}

// carries says that a rail to that peer which moves memory of GPUs as it moves the host's has all of ours.
func (p *Peer) carries(locals []*region.Region) bool {
	return slices.ContainsFunc(p.Pairs, func(pair rail.Pair) bool {
		own := p.tab.Rails.List[pair.Own]
		return !own.Can.Bulk && hasAll(own, locals)
	})
}

// MapsRings says that a rail of ours copies to memory of the peer's GPUs.
func (p *Peer) MapsRings() bool {
	return slices.ContainsFunc(p.Pairs, func(pair rail.Pair) bool { return p.tab.Rails.List[pair.Own].Can.Bulk })
}

// bulk makes a transfer of GPUs' memory one post of the rail that copies it. The operations are there.
func (p *Peer) bulk(x core.Xfer, locals, remotes []*region.Region) error {
	if err := p.tab.Core.Bulk(x, p.copier(locals), region.Indices(locals), region.Indices(remotes)); err != nil {
		return status.Errorf(status.ErrBackend, "prepare: no pinned memory for the operations of a copy between GPUs: %w", err)
	}
	return nil
}

package engine

import (
	"fmt"
	"slices"

	"gorail/backend/core"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/status"
)

// class is what kind of memory operations go between.
type class struct {
	lmem, rmem int32
	ldev, rdev uint64
}

func (c class) vram() bool { return c.lmem == region.VRAM || c.rmem == region.VRAM }
func (c class) gpus() bool { return c.lmem == region.VRAM && c.rmem == region.VRAM }

// names says what it is between, for the log.
func (c class) names() string {
	name := func(mem int32, dev uint64) string {
		if mem == region.VRAM {
			return fmt.Sprintf("GPU %d", dev)
		}
		return "host memory"
	}
	return name(c.lmem, c.ldev) + " and " + name(c.rmem, c.rdev)
}

// classify finds what memory a transfer is between, and what carries it: a rail that copies GPUs' memory whole, rails that have it
// registered as any other (or may have at the peer's: ready looks), or none, which is staging.
func (v *resolver) classify(t *transfer) error {
	mixed := false // of several kinds, or GPUs
	for i, list := range [][]*region.Region{v.locals.list, v.remotes.list} {
		for _, g := range list {
			if g.Mem != list[0].Mem || g.Mem == region.VRAM && g.Dev != list[0].Dev {
				mixed = true
			}
			t.gpu = t.gpu || g.Mem == region.VRAM
		}
		if i == 0 {
			t.class.lmem, t.class.ldev = list[0].Mem, list[0].Dev
		} else {
			t.class.rmem, t.class.rdev = list[0].Mem, list[0].Dev
		}
	}
	switch {
	case !t.gpu:
	case t.class.gpus() && !mixed && v.e.copier(v.peer, v.locals.list) >= 0:
		t.bulk = true
	default:
		t.staged = mixed && v.peer.mapsRings() || !v.e.carries(v.peer, v.locals.list)
	}
	if t.staged {
		t.bulk = false
		if t.inner != nil {
			return status.Errorf(status.ErrNotSupported, "prepare: %w", errUnreachable)
		}
	}
	return nil
}

// hasAll says that the rail has all of the regions.
func hasAll(r *rails.Rail, list []*region.Region) bool {
	return !slices.ContainsFunc(list, func(g *region.Region) bool { return g.Rails.Load()&(1<<r.Index) == 0 })
}

// copier is the rail that copies memory of GPUs whole, to that peer, and has all of ours; -1: there is none.
func (e *Engine) copier(r *remote, locals []*region.Region) int {
	for _, p := range r.pairs {
		if e.rails[p.Own].Can.Bulk && hasAll(e.rails[p.Own], locals) {
			return p.Own
		}
	}
	return -1
}

// carries says that a rail to that peer which moves memory of GPUs as it moves the host's has all of ours.
func (e *Engine) carries(r *remote, locals []*region.Region) bool {
	return slices.ContainsFunc(r.pairs, func(p rail.Pair) bool { return !e.rails[p.Own].Can.Bulk && hasAll(e.rails[p.Own], locals) })
}

// moves says whether a rail moves bytes between such memories, where both are registered on it: who copies GPUs' memory whole does nothing
// else with it.
func moves(r *rails.Rail, c class, bulk bool) bool { return !c.vram() || r.Can.Bulk == bulk }

// mapsRings says that a rail of ours copies to memory of the peer's GPUs.
func (r *remote) mapsRings() bool {
	return slices.ContainsFunc(r.pairs, func(p rail.Pair) bool { return r.e.rails[p.Own].Can.Bulk })
}

// bulk makes a transfer of GPUs' memory one post of the rail that copies it. The operations are there.
func (e *Engine) bulk(x core.Xfer, r *remote, locals, remotes []*region.Region) error {
	if err := e.core.Bulk(x, e.copier(r, locals), region.Indices(locals), region.Indices(remotes)); err != nil {
		return status.Errorf(status.ErrBackend, "prepare: no pinned memory for the operations of a copy between GPUs: %w", err)
	}
	return nil
}

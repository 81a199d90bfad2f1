package engine

import (
	"fmt"
	"slices"
	"time"

	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// Which links have the memory of a transfer on both sides, and what becomes of one that no link carries: what is of GPUs is staged, the rest
// fails.

// away says that the link has failed and rests, or is tried again: others may stand in for it.
func (l *link) away() bool { return l.phase == resting || l.phase == probing && l.epoch > 0 }

// stranded says that the links that reach some memory are all away while others work. Under mu.
func (r *remote) stranded(reaches func(*link) bool) bool {
	works := false
	for _, l := range r.links {
		if l.up && !l.away() && reaches(l) {
			return false
		}
		works = works || l.up && l.phase == working
	}
	return works
}

// reach gives what tells links that have all of the memory, on both sides, from others.
func (t *transfer) reach() func(*link) bool {
	own, theirs := ^uint64(0), ^uint64(0)
	for _, g := range t.remotes {
		theirs &= g.Rails.Load()
	}
	for _, g := range t.locals {
		own &= g.Rails.Load()
	}
	return func(l *link) bool {
		return l.up && moves(l.rail, t.class, t.bulk) && own&(1<<l.rail.Index) != 0 && theirs&(1<<l.peer) != 0
	}
}

// ready checks that every key is here, and finds the links whose rails have all of the memory on both sides. Under t.mu and
// r.mu for reading.
func (t *transfer) ready(r *remote) bool {
	if r.leaving != nil || !t.keyed() {
		return false
	}
	t.links, t.near, t.rings = t.links[:0], 0, t.staged
	if t.staged {
		t.checked = r.epoch
		return true
	}
	close, reaches := region.NearRails(t.locals), t.reach()
	for _, near := range []bool{true, false} {
		for _, l := range r.links {
			if reaches(l) && close&(1<<l.rail.Index) != 0 == near {
				t.links = append(t.links, l.l)
			}
		}
		if near {
			t.near = len(t.links)
		}
	}
	t.rings = t.gpu && t.inner == nil && (len(t.links) == 0 || r.stranded(reaches))
	if len(t.links) == 0 && !t.rings {
		return false
	}
	t.checked = r.epoch
	return true
}

// slowRail is how long a transfer of GPUs' memory waits for its rails to come back before it is staged over others.
const slowRail = 100 * time.Millisecond

// offRails stops a transfer whose rails are away while others work: settle begins it anew, over rings. Under t.mu; false: it is none.
func (t *transfer) offRails() bool {
	r := t.remote
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t.x.TakeTicket(); !t.attached(r) || t.rec.State() == xfer.Queued || !t.x.Running() || !r.stranded(t.reach()) {
		return false
	}
	t.away = true
	t.unlinked.Store(t.inner != nil) // its run has another way
	t.e.core.Abort(t.x, int32(status.ErrBackend))
	return true
}

func (t *transfer) keyed() bool {
	return !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return !g.Keyed })
}

// giveUp ends a waiting transfer for want of one of the peer's regions. Under r.mu.
func (t *transfer) giveUp(g *region.Region) {
	r := t.remote
	r.e.xfers.Rest(t.rec)
	t.unlinked.Store(t.keyed())
	switch {
	case t.keyed():
		t.why = t.apart()
	case g.Unknown && g.Why != "":
		t.why = g.Why
	default:
		t.why = goneThere
	}
	if t.inner == nil { // else its run has another way, or tells
		r.e.log.Error("transfer failed", "peer", r.name, "reason", t.why, "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len)
	}
	if g.Unknown && t.inner == nil {
		t.x.Hold() // the peer may be about to leave
		r.hold(held{t, int32(status.ErrBackend), true})
	} else {
		t.x.Settle(int32(status.ErrBackend))
	}
}

// apart says that no rail in use has all of the memory. Under r.mu.
func (t *transfer) apart() string {
	var ours, theirs []*link
	for _, l := range t.remote.links {
		if l.up && hasAll(l.rail, t.locals) {
			ours = append(ours, l)
		}
		if l.up && !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return g.Rails.Load()&(1<<l.peer) == 0 }) {
			theirs = append(theirs, l)
		}
	}
	return fmt.Sprintf("no rail in use (%v) has the memory of both sides: ours is registered for %v, the peer's for %v; the log of the side that lacks a rail says why",
		t.remote.path(), names(ours), names(theirs))
}

// hopeless gives a region that the peer does not have, or whose keys nobody asks for any more, or one that has no rail in
// common with the others.
func (t *transfer) hopeless() *region.Region {
	for _, g := range t.remotes {
		if (g.Unknown || g.Closed.Load()) && !g.Keyed && !g.Asked {
			return g
		}
	}
	if t.keyed() && len(t.links) == 0 {
		return t.remotes[0]
	}
	return nil
}

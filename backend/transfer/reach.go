package transfer

import (
	"fmt"
	"slices"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/rails"
	"gorail/backend/region"
)

// This file finds the links that reach a transfer's memory on both sides. A transfer that no link carries is staged if it has
// GPU memory. Otherwise it fails.

// reach returns a test for links that have all of the memory, on both sides, and take the transfer. While a device reaches GPU
// memory directly, no link goes through bounce buffers. Under Peer.mu for reading.
func (t *Transfer) reach() func(*Route) bool {
	own, theirs := ^uint64(0), ^uint64(0)
	for _, g := range t.remotes {
		theirs &= g.Rails.Load()
	}
	for _, g := range t.Locals() {
		own &= g.Rails.Load()
	}
	has := func(r *Route) bool {
		return moves(r.Rail, t.class, t.bulk) && own&(1<<r.Rail.Index) != 0 && theirs&(1<<r.Peer) != 0
	}
	if !t.gpu || t.bulk {
		return has
	}
	routes := t.peer.view.Routes
	direct := slices.ContainsFunc(routes, func(r Route) bool { return r.Rail.Can.Bounces == 0 && !r.Away && has(&r) })
	return func(r *Route) bool {
		return has(r) && (r.Rail.Can.Bounces == 0 || !direct && t.peer.bounces(r.Rail, t.bytes, t.mixed))
	}
}

// Reachable reports whether links carry operations between such memories directly. own and theirs are bit masks of our and the
// peer's rails that have all of the memory.
func (p *Peer) Reachable(c Class, bytes, own, theirs uint64) bool {
	reaches := func(r *Route) bool {
		return own&(1<<r.Rail.Index) != 0 && theirs&(1<<r.Peer) != 0 && moves(r.Rail, c, c.GPUs() && r.Rail.Can.Bulk) &&
			(!c.VRAM() || r.Rail.Can.Bounces == 0 || p.bounces(r.Rail, bytes, false))
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := range p.view.Routes {
		if reaches(&p.view.Routes[i]) {
			return !(c.VRAM() && p.stranded(reaches))
		}
	}
	return false
}

// ready checks that all keys are known and give the access that the transfer needs, and collects the links whose rails have all of the memory on both sides. Under t.mu (or
// with t queued) and Peer.mu for reading.
func (t *Transfer) ready() bool {
	p := t.peer
	if p.view.Leaving || !t.keyed() || t.denied() != nil {
		return false
	}
	if !t.again.IsZero() && time.Now().After(t.again) {
		t.refused, t.staged, t.again = 0, false, time.Time{}
	}
	t.links, t.near, t.rings = t.links[:0], 0, t.staged
	if t.staged {
		t.checked = p.epoch
		return true
	}
	close, reaches := region.NearRails(t.Locals()), t.reach()
	var bounces *rails.Rail
	for _, near := range []bool{true, false} {
		for i := range p.view.Routes {
			r := &p.view.Routes[i]
			if reaches(r) && close&(1<<r.Rail.Index) != 0 == near {
				t.links = append(t.links, r.Link)
				if t.gpu && r.Rail.Can.Bounces > 0 {
					bounces = r.Rail
				}
			}
		}
		if near {
			t.near = len(t.links)
		}
	}
	t.rings = t.gpu && t.inner == nil && (len(t.links) == 0 || p.stranded(reaches))
	if len(t.links) == 0 && !t.rings {
		return false
	}
	if bounces != nil && !t.rings {
		p.logBounces(t.class, bounces)
	}
	t.checked = p.epoch
	return true
}

// slowRail is how long a GPU memory transfer waits for its failed rails before it is staged over others.
const slowRail = 100 * time.Millisecond

// offRails stops a transfer whose rails have failed while others work. finalize starts it again, over bounce buffers. Under
// t.mu. False: its rails have not failed.
func (t *Transfer) offRails() bool {
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !t.x.DropCachedPost() || !t.attached() || t.rec.State() == Queued || !t.x.Running() || !p.stranded(t.reach()) {
		return false
	}
	t.restart = withoutRails
	t.unlinked.Store(t.inner != nil) // the run of the inner transfer has another path
	t.tab.Core.Abort(t.x, int32(errcode.ErrBackend))
	return true
}

func (t *Transfer) keyed() bool {
	return !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return !g.Keyed })
}

// GoneThere is the error for a range of the peer without keys.
const GoneThere = "the peer has deregistered its memory, or its metadata was unloaded"

// giveUp ends a waiting transfer, because one of the peer's regions is unavailable. Under Peer.mu.
func (t *Transfer) giveUp(g *region.Region) {
	t.tab.records.Retire(t.rec)
	denied := t.denied()
	t.unlinked.Store(t.keyed() && denied == nil)
	switch {
	case denied != nil:
		t.why = t.whyDenied(denied)
	case t.keyed():
		t.why = t.noCommonRail()
	case g.Unknown && g.Why != "":
		t.why = errcode.RemoteGone.Errorf("%s", g.Why)
	default:
		t.why = errcode.RemoteGone.Errorf(GoneThere)
	}
	if t.inner == nil { // otherwise its run uses another path, or logs the error; a held one may get another status
		t.tab.Log.Error("transfer failed", "peer", t.peer.Name, "reason", t.why, "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, errcode.Key, errcode.Of(t.why))
	}
	code := int32(errcode.StatusOf(t.why))
	if g.Unknown && !g.Stays && t.inner == nil {
		t.x.Hold() // the peer may be about to leave
		t.peer.hold(held{t, code, true})
	} else {
		t.x.Finalize(code)
	}
}

// noCommonRail describes that no rail in use has all of the memory. Under Peer.mu.
func (t *Transfer) noCommonRail() error {
	var ours, theirs, all []string
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	for i := range t.peer.view.Routes {
		r := &t.peer.view.Routes[i]
		add(&all, r.Rail.Name())
		if hasAll(r.Rail, t.Locals()) {
			add(&ours, r.Rail.Name())
		}
		if !slices.ContainsFunc(t.remotes, func(g *region.Region) bool { return g.Rails.Load()&(1<<r.Peer) == 0 }) {
			add(&theirs, r.Rail.Name())
		}
	}
	return errcode.NoCommonRail.Errorf("no rail in use (%v) has the memory of both sides: ours is registered for %v, the peer's for %v; the log of the side that lacks a rail says why",
		all, ours, theirs)
}

// unreachable returns a region of the peer that blocks a waiting transfer. The peer lacks the region, or does not allow the
// operation on it, or its keys are no longer requested, or no rail is common to all regions. Under Peer.mu, with the session's lock held.
func (t *Transfer) unreachable() *region.Region {
	if g := t.denied(); g != nil {
		return g
	}
	for _, g := range t.remotes {
		if goneThere(g) {
			return g
		}
	}
	if t.keyed() && len(t.links) == 0 {
		return t.remotes[0]
	}
	return nil
}

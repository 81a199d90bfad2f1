package transfer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/rails"
	"gorail/backend/region"
)

// This file finds the links that reach a transfer's memory on both sides. A transfer that no link carries is staged if it has
// GPU memory. Otherwise it fails.

// reach returns a test for links that have all of the memory, on both sides, and take the transfer. While a device reaches GPU
// memory directly, no link goes through bounce buffers. Under Peer.mu for reading.
func (t *Transfer) reach(on Sets) func(*Route) bool {
	has := func(r *Route) bool {
		return t.fits(r.Rail) && moves(r.Rail, t.class, t.bulk) && on.Ours&(1<<r.Rail.Index) != 0 && on.Theirs&(1<<r.Peer) != 0
	}
	if !t.gpu || t.bulk {
		return has
	}
	routes := t.peer.view.Routes
	direct := slices.ContainsFunc(routes, func(r Route) bool { return r.Rail.Can().Bounces == 0 && !r.Away && has(&r) })
	return func(r *Route) bool {
		return has(r) && (r.Rail.Can().Bounces == 0 || !direct && t.peer.bounces(r.Rail, t.bytes, t.mixed))
	}
}

// fits reports that a rail takes the transfer's operations. A device that was opened after they were planned may take smaller ones alone.
func (t *Transfer) fits(r *rails.Rail) bool {
	most := r.Can().MaxMsg
	if most == 0 || t.most <= most {
		return true
	}
	if r.First("short messages") {
		t.tab.Log.Warn("rail not used for transfers that were prepared before its device was open: their operations are too large for it", "rail", r.Name(), "largest", t.most, "most", most,
			"advice", "prepare such transfers anew")
	}
	return false
}

// Reachable reports whether links carry operations between such memories directly. own and theirs are bit masks of our and the
// peer's rails that have all of the memory. plain: without bulk rails.
func (p *Peer) Reachable(c Class, bytes, own, theirs uint64, plain bool) bool {
	reaches := func(r *Route) bool {
		return !(plain && r.Rail.Can().Bulk) && own&(1<<r.Rail.Index) != 0 && theirs&(1<<r.Peer) != 0 && moves(r.Rail, c, c.bulkOn(r.Rail)) &&
			(!c.VRAM() || r.Rail.Can().Bounces == 0 || p.bounces(r.Rail, bytes, false))
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
	sets := t.sets()
	close, reaches := region.NearRails(t.Locals()), t.reach(sets)
	var bounces *rails.Rail
	for _, near := range []bool{true, false} {
		for i := range p.view.Routes {
			r := &p.view.Routes[i]
			if reaches(r) && close&(1<<r.Rail.Index) != 0 == near {
				t.links = append(t.links, r.Link)
				if t.gpu && r.Rail.Can().Bounces > 0 {
					bounces = r.Rail
				}
			}
		}
		if near {
			t.near = len(t.links)
		}
	}
	linked := p.serve(t.links)
	if begins := p.wantLinks(sets, linked); begins && !linked {
		return false
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

// mayStop reports that the transfer runs on links of a ready session. Its cached post is gone then: nobody posts it meanwhile. Under t.mu and Peer.mu
// for reading.
func (t *Transfer) mayStop() bool {
	return t.linksOfReadySession() && t.x.DropCachedPost() && t.x.Running() && t.rec.State() != Queued
}

// slowRail is how long a GPU memory transfer waits for its failed rails before it is staged over others.
const slowRail = 100 * time.Millisecond

// offRails stops a transfer whose rails have failed while others work. finalize starts it again, over bounce buffers. Under
// t.mu. False: its rails have not failed. A transfer that waits for others keeps its cached post.
func (t *Transfer) offRails() bool {
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.stranded(t.reach(t.sets())) || !t.mayStop() {
		return false
	}
	t.restart = withoutRails
	t.unlinked.Store(t.inner != nil) // the run of the inner transfer has another path
	t.tab.Core.Abort(t.x, int32(errcode.ErrBackend))
	return true
}

// serve reports that one of the links has not failed. Under mu.
func (p *Peer) serve(links []core.Link) bool {
	return slices.ContainsFunc(p.view.Routes, func(r Route) bool { return !r.Away && slices.Contains(links, r.Link) })
}

// offLinks stops a transfer whose links move nothing for rail_timeout, when a link works that has begun since it was posted. finalize starts it again,
// over that link, too: so once a link. It asks for such links. What is posted completes: a notification that has gone out cannot be taken back. So a
// transfer that is posted as a whole waits for the fence of its link, and one whose FENCE has no answer does, too. Under t.mu. False: it goes on.
func (t *Transfer) offLinks() bool {
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.inner != nil || t.taken || t.bulk || t.session != p.view.Session || !t.x.InFlight() {
		return false
	}
	on := t.sets()
	reaches, begun := t.reach(on), false
	for i := range p.view.Routes {
		switch r := &p.view.Routes[i]; {
		case !slices.Contains(t.links, r.Link):
			begun = begun || r.Working && reaches(r)
		case !r.Working && !r.Away:
			return false
		}
	}
	if !begun {
		p.wantLinks(on, false)
		return false
	}
	if !t.mayStop() {
		return false
	}
	t.tab.Core.AbortUnposted(t.x, int32(errcode.ErrBackend))
	if err, _ := t.x.Err(); err != 0 && t.reason == nil {
		t.taken = true // its memory is whole: see coverTaken
	}
	return t.taken
}

// errRelinked is why a transfer that Relink stops has ended, if it cannot start again.
var errRelinked = errors.New("no data connection of those that the transfer began with was established")

func (t *Transfer) relink() {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.freed() || t.run.Load() != nil || !t.waitsForLinks() || !t.mayStop() {
		return // most keep their cached post
	}
	t.unlinked.Store(t.inner != nil) // the run of the inner transfer has another path
	t.tab.Core.Abort(t.x, int32(errcode.ErrBackend))
	if err, _ := t.x.Err(); err != 0 && t.reason == nil && t.inner == nil {
		t.reason, t.taken = errcode.RailNotConnected.Errorf("%w", errRelinked), true
	}
}

// waitsForLinks reports that nothing has ever come over the links that the transfer began with, and that others which work reach its memory. Under
// Peer.mu for reading.
func (t *Transfer) waitsForLinks() (waits bool) {
	reaches := t.reach(t.sets())
	for i := range t.peer.view.Routes {
		switch r := &t.peer.view.Routes[i]; {
		case slices.Contains(t.links, r.Link):
			if r.Proved {
				return false
			}
		case r.Working && reaches(r):
			waits = true
		}
	}
	return waits
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
		t.peer.deferError(deferredError{t, code, true})
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
	if t.keyed() && len(t.links) == 0 && !t.linksBegin() {
		return t.remotes[0]
	}
	return nil
}

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
	case !v.plain && !t.mixed && !t.class.GPUs() && v.peer.lends(v.locals.list, v.remotes.list) >= 0:
		t.bulk, t.gpu = true, true // a GPU copies
	case !t.gpu:
	case t.class.GPUs() && !t.mixed && !v.plain && v.peer.copier(v.locals.list, v.remotes.list) >= 0:
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

// copier returns the index of our bulk rail to that peer on which all of our regions are registered; -1: none. Between hosts the peer's are
// there, too, as far as their keys are known.
func (p *Peer) copier(locals, remotes []*region.Region) int {
	for _, pair := range p.Pairs() {
		own := p.tab.Rails.List[pair.Own]
		if !own.Can().Bulk || !hasAll(own, locals) {
			continue
		}
		if own.Device().Host || !slices.ContainsFunc(remotes, func(g *region.Region) bool { return g.Keyed && g.Rails.Load()&(1<<pair.Peer) == 0 }) {
			return pair.Own
		}
	}
	return -1
}

// copier is Peer.copier, or Peer.lends, for the memory of the transfer's class.
func (t *Transfer) copier(locals, remotes []*region.Region) int {
	if t.class.GPUs() {
		return t.peer.copier(locals, remotes)
	}
	return t.peer.lends(locals, remotes)
}

// Lends reports that a rail to the peer is one of NVLink between hosts.
func (p *Peer) Lends() bool {
	return slices.ContainsFunc(p.Pairs(), func(pair rails.Pair) bool { return p.tab.Rails.List[pair.Own].Can().VRAMOnly })
}

// lends is copier for memory that is not on GPUs on both sides: a rail of NVLink between hosts, on which all of the regions are known to be.
func (p *Peer) lends(locals, remotes []*region.Region) int {
	for _, pair := range p.Pairs() {
		own := p.tab.Rails.List[pair.Own]
		if own.Can().VRAMOnly && hasAll(own, locals) && !slices.ContainsFunc(remotes, func(g *region.Region) bool { return !g.Keyed || g.Rails.Load()&(1<<pair.Peer) == 0 }) {
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
		return !own.Can().Bulk && hasAll(own, locals) && (own.Can().Bounces == 0 || p.bounces(own, bytes, mixed))
	})
}

// bounces reports whether a rail with bounce buffers of its own takes a transfer of GPU memory. Others are staged: large ones,
// because staging divides them among all rails, and those within an agent, which need no bounce buffer.
func (p *Peer) bounces(own *rails.Rail, bytes uint64, mixed bool) bool {
	return bytes <= own.Can().Bounces && !mixed && !p.Self
}

// MapsRings reports whether one of our rails copies to GPU memory of the peer.
func (p *Peer) MapsRings() bool {
	return slices.ContainsFunc(p.Pairs(), func(pair rails.Pair) bool { return p.tab.Rails.List[pair.Own].Can().Bulk })
}

// Class is the type of local and remote memory of a group of operations.
type Class struct {
	LocalMem, RemoteMem int32
	LocalDev, RemoteDev uint64
}

// ErrUnreachable means that no link can move bytes between the memories of an inner transfer.
var ErrUnreachable = errors.New("no link reaches both memories")

// VRAM reports whether a side is GPU memory. GPUs reports whether both sides are.
func (c Class) VRAM() bool { return c.LocalMem == region.VRAM || c.RemoteMem == region.VRAM }
func (c Class) GPUs() bool { return c.LocalMem == region.VRAM && c.RemoteMem == region.VRAM }

// String names both sides for the log.
func (c Class) String() string {
	name := func(mem int32, dev uint64) string {
		if mem == region.VRAM {
			return fmt.Sprintf("GPU %d", dev)
		}
		return "host memory"
	}
	return name(c.LocalMem, c.LocalDev) + " and " + name(c.RemoteMem, c.RemoteDev)
}

// hasAll reports whether all regions are registered on the rail.
func hasAll(r *rails.Rail, list []*region.Region) bool {
	return !slices.ContainsFunc(list, func(g *region.Region) bool { return g.Rails.Load()&(1<<r.Index) == 0 })
}

// moves reports whether a rail can move bytes between these memories if both are registered on the rail. A bulk rail carries
// GPU memory only as bulk transfers, and NVLink between hosts all memory.
func moves(r *rails.Rail, c Class, bulk bool) bool {
	switch {
	case r.Can().VRAMOnly:
		return bulk
	case bulk && !c.GPUs():
		return false
	case c.VRAM():
		return r.Can().Bulk == bulk
	}
	return true
}

// bulkOn reports that a rail moves such memory in bulk.
func (c Class) bulkOn(r *rails.Rail) bool { return r.Can().VRAMOnly || c.GPUs() && r.Can().Bulk }

// The peer's keys come with the access that we have. A transfer that needs more is refused here, before anything is posted: where
// the device enforces the access it would break the link, and where we copy by ourselves nothing else enforces it.

// needs is the access that the transfer needs to the peer's memory.
func (t *Transfer) needs() option.Rights {
	if t.op == Read {
		return option.PeersRead
	}
	return option.PeersWrite
}

// denied returns a region of the peer to which we lack access; nil: none, as far as keys are known. Under Peer.mu for reading.
func (t *Transfer) denied() *region.Region {
	for _, g := range t.remotes {
		if g.Keyed && !g.Access.Allow(t.needs()) {
			return g
		}
	}
	return nil
}

// whyDenied describes the lack of access to a region.
func (t *Transfer) whyDenied(g *region.Region) error {
	op := "WRITE to"
	if t.op == Read {
		op = "READ from"
	}
	return errcode.AccessDenied.Errorf("%s %#x+%d of agent %q is not allowed: the peer has registered this memory with %s=%s (its option, or the text in metaInfo)",
		op, g.Addr, g.Len, t.peer.Name, option.RemoteAccess, g.Access)
}

// deny is the error of a post that lacks access to a region.
func (t *Transfer) deny(g *region.Region) error {
	return errcode.AccessDenied.Errorf("post: %w", t.whyDenied(g))
}

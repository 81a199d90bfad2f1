package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// MostPulled is the number of key requests in flight up to which we request keys that no transfer waits for. It gives
// the target enough work. It also keeps the queue short for wantKeys, which sends its requests at once.
const MostPulled = 3

// fewWanted is the number of loaded regions below which we wait for the answer to a request in flight. Then one request asks for
// all of them: an application loads many regions in a row, and each request costs a frame, a record of TLS and two wake-ups.
const fewWanted = 64

// want queues a region for a key request. Under mu.
func (r *Initiator) want(g *region.Region) {
	if !g.Wanted {
		g.Wanted = true
		r.wanted = append(r.wanted, g)
	}
}

// missing returns true if we should request a region's keys: no request is in flight, and the peer has not answered that
// the region is unknown.
func missing(g *region.Region) bool { return !g.Keyed && !g.Asked && !g.Unknown && !g.Closed.Load() }

// pull requests missing keys in the order of loading. One request fills at most one frame. Under mu.
func (r *Initiator) pull() {
	for len(r.requests) < MostPulled && r.conn.out != nil {
		var list []*region.Region
		for len(r.wanted) > 0 && len(list) < wire.MaxRanges {
			g := r.wanted[0]
			r.wanted[0], r.wanted = nil, r.wanted[1:]
			g.Wanted = false
			if missing(g) {
				list = append(list, g)
			}
		}
		if len(list) == 0 {
			return
		}
		r.ask(list)
	}
}

// wantKeys requests the keys that transfers want, before all others. Under mu.
func (r *Initiator) wantKeys(list []*region.Region) {
	if r.conn.out != nil {
		r.askAll(list, missing)
	}
}

// askAll requests the keys of the regions for which wants returns true. Under mu.
func (r *Initiator) askAll(list []*region.Region, wants func(g *region.Region) bool) {
	var now []*region.Region
	for _, g := range list {
		if !wants(g) {
			continue
		}
		g.Asked = true // the list may name it again
		if now = append(now, g); len(now) == wire.MaxRanges {
			r.ask(now)
			now = nil
		}
	}
	if len(now) > 0 {
		r.ask(now)
	}
}

// ask sends one request. Under mu.
func (r *Initiator) ask(list []*region.Region) {
	claims := make([]wire.Claim, len(list))
	for i, g := range list {
		g.Asked, g.Again = true, false
		claims[i] = g.Claim
	}
	id := r.s.Life.NextID()
	r.requests[id] = list
	r.conn.out.Keys(id, claims)
}

// whenReady calls f under mu, unless the session is not ready, or has another connection by now.
func (c *conn) whenReady(f func(r *Initiator)) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == ready && c.current() {
		f(r)
	}
}

// Keys handles the target's answer to a key request.
func (c *conn) Keys(k wire.Keys) {
	c.whenReady(func(r *Initiator) {
		list := r.requests[k.ID]
		delete(r.requests, k.ID)
		var older []*region.Region // than a Wider
		r.changeAndKick(func() {
			for i, g := range list {
				g.Asked = false
				if g.More != 0 {
					older = append(older, g)
				}
				if i < len(k.Entries) && !g.Closed.Load() {
					r.take(g, k.Entries[i], k.Stays)
				}
			}
			if len(r.requests) == 0 {
				r.early = nil
			}
		})
		if k.Stays {
			r.peer.Stays()
		}
		r.askOlder(older)
		r.pull()
	})
}

// take enters a region's keys. stays: the peer's agent is not being destroyed. Within change.
func (r *Initiator) take(g *region.Region, entry wire.KeyEntry, stays bool) {
	if entry.Known && r.early[entry.Region] {
		r.want(g) // revoked before the answer arrived: request the keys again
		return
	}
	if g.Keyed {
		r.takeMore(g, entry)
		return
	}
	if !entry.Known && g.Again {
		r.want(g)
		return
	}
	g.Why = r.refusal(g, entry)
	g.Stays = stays || entry.Known
	if g.Unknown = g.Why != ""; g.Unknown {
		return
	}
	g.Core.Set(g.Addr, g.Len, r.s.Links.Rails.Slots)
	g.Rails.Store(0)
	for _, rk := range entry.Rails {
		if r.takesKey(int(rk.Rail)) {
			g.Rails.Or(1 << rk.Rail)
			g.Core.SetKey(r.slots[int(rk.Rail)], core.Key{Key: rk.Key, Base: rk.Base})
		}
	}
	if g.Len == 0 { // a region of no bytes needs no key
		g.Rails.Store(^uint64(0))
	}
	g.TargetID, g.Access = entry.Region, entry.Access
	r.byTarget[entry.Region] = g
	g.Keyed = true
	if g.Anew.Swap(false) {
		g.Back.Add(1)
	}
	g.Core.SetLive(true)
}

// takeMore adds keys of more rails to a region that has keys. Posted operations use the keys of other rails. Within
// change.
func (r *Initiator) takeMore(g *region.Region, entry wire.KeyEntry) {
	if !entry.Known || entry.Region != g.TargetID {
		return // a revocation is under way
	}
	for _, rk := range entry.Rails {
		if bit := uint64(1) << rk.Rail; r.takesKey(int(rk.Rail)) && g.Rails.Load()&bit == 0 {
			g.Core.SetKey(r.slots[int(rk.Rail)], core.Key{Key: rk.Key, Base: rk.Base})
			g.Rails.Or(bit)
		}
	}
}

// dropKeys forgets the keys of a session that has ended. Within change.
func (r *Initiator) dropKeys() {
	for _, g := range r.regions {
		if g.Keyed {
			g.Core.SetLive(false)
		}
		g.Keyed, g.Asked, g.Unknown, g.More = false, false, false, 0
		if g.Slices == nil {
			r.want(g)
		}
	}
	for _, g := range r.unloaded {
		if g.Keyed && g.Pin() { // else another region may have its entry in the table
			g.Core.SetLive(false)
			g.Keyed = false
			r.s.Regions.Regions.Unpin(g)
		}
	}
	clear(r.byTarget)
	clear(r.requests)
	r.unloaded, r.early, r.wider.rails = nil, nil, 0
}

// refusal returns why we cannot use the peer's range; "": we can. Memory of a GPU always can be used: it is staged if no
// rail in use reaches it, even if the peer has it on other rails. Under mu.
func (r *Initiator) refusal(g *region.Region, entry wire.KeyEntry) string {
	if !entry.Known {
		return transfer.GoneThere
	}
	if g.Mem == region.VRAM || g.Len == 0 { // a region of no bytes needs no key
		return ""
	}
	if r.wide { // its links begin when a transfer needs them
		for _, k := range entry.Rails {
			if slices.ContainsFunc(r.peer.Pairs(), func(p rails.Pair) bool { return p.Peer == int(k.Rail) }) {
				return ""
			}
		}
	}
	for _, l := range r.links {
		for _, k := range entry.Rails {
			if l.Up && int(k.Rail) == l.Peer {
				return ""
			}
		}
	}
	why := fmt.Sprintf("the peer could not register its memory on any rail in use (%s); the peer's log says why", strings.Join(r.inUse(), ","))
	r.s.Log.Error("no rail has the peer's memory", "peer", r.name, "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "reason", why)
	return why
}

// mostEarly bounds the regions that a target revokes while it owes us keys. A target's table of regions is not much
// larger.
const mostEarly = 1 << 20

// Revoke handles a REVOKE: the target takes regions back. Nothing new is posted on them. Operations in flight drain,
// and a transfer that is posted completely ends well. Then we answer. With no transfer and no key request in flight
// we give up every key of the peer. The peer then need not ask again for the rest of a burst.
func (c *conn) Revoke(id uint64, regions []uint64) { c.revoke(id, regions, false) }

// Renew handles a REVOKE of regions that stay registered: the target has found that its application mapped other memory at their
// addresses, or unmapped it. We unmap what we have mapped. Operations in flight drain, and the rest of their transfers goes
// through the target's copies. Staged transfers use addresses, and go on.
func (c *conn) Renew(id uint64, regions []uint64) { c.revoke(id, regions, true) }

func (c *conn) revoke(id uint64, regions []uint64, renewed bool) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	if r.state != ready || !c.current() {
		r.mu.Unlock()
		return
	}
	if len(r.early) > mostEarly {
		r.s.Limits.Hit(limits.EarlyRevokes)
		err := fmt.Errorf("the peer has revoked %d regions while it owes keys", len(r.early))
		r.mu.Unlock()
		go c.GiveUp(err) // this call is inside the engine already
		return
	}
	rev := &revocation{id: id, renewed: renewed, gone: map[*region.Region]bool{}, left: map[*transfer.Transfer]struct{}{}}
	r.change(func() { r.takeBack(rev, regions) })
	draining := slices.Collect(maps.Keys(rev.left))
	if len(draining) == 0 {
		r.answer(rev) // before the next key request: the target reads in this order
		r.mu.Unlock()
		return
	}
	r.revokes = append(r.revokes, rev)
	r.fenceBroken("a region is revoked over a failed link")
	r.mu.Unlock()
	for _, t := range draining {
		if renewed {
			t.Renew()
		} else {
			t.TakeBack(rev.uses)
		}
	}
	r.FinishRevokes()
}

// takeBack drops the keys of the revoked regions, and finds the transfers that the revocation waits for. Within change.
func (r *Initiator) takeBack(rev *revocation, regions []uint64) {
	drop := func(g *region.Region) {
		rev.gone[g] = true
		g.Anew.Store(rev.renewed)
		r.dropKey(g)
	}
	for _, tid := range regions {
		if g := r.byTarget[tid]; g != nil {
			drop(g)
		}
		if g := r.byTarget[tid]; g == nil && len(r.requests) > 0 { // the answer with its keys may be under way
			if r.early == nil {
				r.early = map[uint64]bool{}
			}
			r.early[tid] = true //limit:early_revokes
		}
	}
	busy := r.peer.Active()
	if rev.all = len(busy) == 0 && len(r.requests) == 0; rev.all {
		for _, g := range r.byTarget {
			drop(g)
		}
	}
	for _, g := range r.unloaded {
		if g.Keyed && (rev.all || slices.Contains(regions, g.TargetID)) && g.Pin() { // else another region may have its entry in the table
			drop(g)
			r.s.Regions.Regions.Unpin(g)
		}
	}
	for _, t := range busy {
		if rev.renewed && t.Staged() {
			continue
		}
		if rev.uses(t) {
			rev.left[t] = struct{}{}
		}
	}
}

// uses returns true if the transfer uses memory that the revocation takes back. Under mu or Peer.mu.
func (rev *revocation) uses(t *transfer.Transfer) bool {
	return slices.ContainsFunc(t.Remotes(), func(g *region.Region) bool { return rev.gone[g] })
}

// revoking returns true if revocations wait. It does not wait for mu: if mu is taken, it returns false.
func (r *Initiator) revoking() bool {
	if !r.mu.TryRLock() {
		return false
	}
	defer r.mu.RUnlock()
	return len(r.revokes) > 0
}

// FinishRevokes answers the revocations whose transfers have all drained. Implements transfer.Session.
func (r *Initiator) FinishRevokes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.revokes[:0]
	for _, rev := range r.revokes {
		for t := range rev.left {
			if !t.Busy() || !rev.uses(t) || rev.renewed && t.Staged() { // it may have started again, over other registrations or by the peer's copies
				delete(rev.left, t)
			}
		}
		if len(rev.left) == 0 {
			r.answer(rev)
		} else {
			keep = append(keep, rev)
		}
	}
	r.revokes = keep
}

// answer sends the answer to a revocation. Failed links get a FENCE first, and the target closes the endpoint before it
// reads the answer: operations of a staged transfer may still be on the way there. Under mu.
func (r *Initiator) answer(rev *revocation) {
	r.fenceBroken("a revocation is answered over a failed link")
	for g := range rev.gone {
		r.forget(g)
	}
	r.conn.out.Revoked(rev.id, rev.all)
}

// dropKey forgets a region's keys, and requests new ones. Within change.
func (r *Initiator) dropKey(g *region.Region) {
	g.Core.SetLive(false)
	g.Keyed = false
	if g.Closed.Load() {
		return // unloaded: a new region may have the same number of the peer
	}
	delete(r.byTarget, g.TargetID)
	r.want(g)
}

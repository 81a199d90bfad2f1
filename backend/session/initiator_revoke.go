package session

import (
	"fmt"
	"maps"
	"slices"

	"gorail/backend/limits"
	"gorail/backend/region"
	"gorail/backend/transfer"
)

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

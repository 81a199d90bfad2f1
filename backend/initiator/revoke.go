package initiator

import (
	"maps"
	"slices"

	"gorail/backend/region"
	"gorail/backend/transfer"
)

// Revoke: the target takes regions back. Nothing new is posted on them; what is in flight drains, and a transfer that is posted whole ends well; then we answer. With
// nothing in flight at all we give up every key of the peer's, so that it need not ask again for the rest of a burst.
func (c *conn) Revoke(id uint64, regions []uint64) {
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
	rev := &revocation{id: id, gone: map[*region.Region]bool{}, left: map[*transfer.Transfer]struct{}{}}
	r.change(func() { r.takeBack(rev, regions) })
	draining := slices.Collect(maps.Keys(rev.left))
	if len(draining) == 0 {
		r.answer(rev) // before anybody asks for keys again: the target reads in this order
		r.mu.Unlock()
		return
	}
	r.revokes = append(r.revokes, rev)
	r.fenceBroken("a region is taken back over a broken link")
	r.mu.Unlock()
	for _, t := range draining {
		t.TakeBack()
	}
	r.FinishRevokes()
}

// takeBack drops the keys that a revocation is of, and finds the transfers that it waits for. Within change.
func (r *Session) takeBack(rev *revocation, regions []uint64) {
	drop := func(g *region.Region) {
		rev.gone[g] = true
		r.dropKey(g)
	}
	for _, tid := range regions {
		if g := r.byTarget[tid]; g != nil {
			drop(g)
		}
		if g := r.byTarget[tid]; g == nil && len(r.requests) > 0 { // its keys may be under way
			if r.early == nil {
				r.early = map[uint64]bool{}
			}
			r.early[tid] = true
		}
	}
	busy := r.peer.Active()
	if rev.all = len(busy) == 0 && len(r.requests) == 0; rev.all {
		for _, g := range r.byTarget {
			drop(g)
		}
	}
	for _, g := range r.unloaded {
		if g.Keyed && (rev.all || slices.Contains(regions, g.TargetID)) && g.Pin() { // else its entry in the table may be another's
			drop(g)
			r.s.Regions.Regions.Unpin(g)
		}
	}
	for _, t := range busy {
		if slices.ContainsFunc(t.Remotes(), func(g *region.Region) bool { return rev.gone[g] }) {
			rev.left[t] = struct{}{}
		}
	}
}

// revoking says that some wait, as far as can be seen without waiting.
func (r *Session) revoking() bool {
	if !r.mu.TryRLock() {
		return false
	}
	defer r.mu.RUnlock()
	return len(r.revokes) > 0
}

// FinishRevokes answers the revocations whose transfers have all drained. Implements transfer.Session.
func (r *Session) FinishRevokes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.revokes[:0]
	for _, rev := range r.revokes {
		for t := range rev.left {
			if !t.Busy() {
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

// answer gives a revocation back. Over a broken link the FENCE goes first, and the target closes the endpoint before it reads the answer:
// what a staged transfer had there may still be on the way. Under mu.
func (r *Session) answer(rev *revocation) {
	r.fenceBroken("a region is given back over a broken link")
	for g := range rev.gone {
		r.forget(g)
	}
	r.conn.out.Revoked(rev.id, rev.all)
}

// dropKey forgets a region's keys, and asks for new ones. Within change.
func (r *Session) dropKey(g *region.Region) {
	g.Core.SetLive(false)
	g.Keyed = false
	if g.Closed.Load() {
		return // unloaded: it may be there anew, under the peer's same number
	}
	delete(r.byTarget, g.TargetID)
	r.want(g)
}

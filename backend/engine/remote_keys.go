package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// LoadRemote notes a peer's range; its keys are asked for on the control channel in the background. ErrNotFound for a
// peer whose connection info was never loaded, and nothing is created.
func (e *Engine) LoadRemote(name string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	r := e.remote(name)
	if r == nil {
		return 0, status.Errorf(status.ErrNotFound, "load metadata: no connection info of agent %q is loaded", name)
	}
	b, err := wire.DecodeRegion(blob)
	if err != nil {
		return 0, status.Errorf(status.ErrMismatch, "metadata blob of agent %q: %w", name, err)
	}
	if b.Engine != r.blob.Engine {
		return 0, status.Errorf(status.ErrMismatch, "metadata blob of agent %q belongs to another engine: it was restarted; load its new metadata", name)
	}
	if b.Addr != addr || b.Len != length || b.Dev != dev || b.Mem != mem {
		return 0, status.Errorf(status.ErrMismatch, "metadata blob of agent %q names %#x+%d, its descriptor %#x+%d", name, b.Addr, b.Len, addr, length)
	}
	g, err := r.load(wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem})
	if err != nil {
		return 0, err
	}
	return g.ID, nil
}

// load enters a range of the peer's, once.
func (r *remote) load(rng wire.Range) (*region.Region, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.enter(rng)
	if err == nil && r.state == ready {
		r.pull()
	}
	return g, err
}

// UnloadRemote forgets a peer's range; transfers that use it keep what they need. A range of ours (the agent unloads
// its own metadata too) is left alone.
func (e *Engine) UnloadRemote(id uint64) error {
	g := e.regions.Regions.Get(id)
	if g == nil || g.Peer == nil {
		return nil
	}
	r := g.Peer.(*remote)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.regions[g.Range] != g {
		return nil
	}
	r.leave(g)
	return nil
}

// retire ends the loaded region's own pin. Under mu.
func (r *remote) retire(g *region.Region) {
	if g.Closed.Swap(true) {
		return
	}
	if r.byTarget[g.TargetID] == g {
		delete(r.byTarget, g.TargetID)
	}
	r.e.regions.Regions.Unpin(g)
	if g.Pins.Load() == 0 {
		r.forget(g)
	} else if g.Keyed { // prepared transfers go on: the peer must be able to take it back from them
		if len(r.unloaded) == cap(r.unloaded) {
			r.unloaded = slices.DeleteFunc(r.unloaded, func(g *region.Region) bool { return g.Pins.Load() == 0 })
		}
		r.unloaded = append(r.unloaded, g)
	}
}

// forget unmaps a region of the peer's where that was mapped; nothing is posted on it any more. Under mu.
func (r *remote) forget(g *region.Region) {
	if g.Mem != region.VRAM {
		return
	}
	for _, l := range r.links {
		if m, ok := l.ep.(provider.Importer); ok {
			m.Forget(region.Index(g.ID))
		}
	}
}

// refusal says why the peer's range can't be used; "": it can. Memory of a GPU always can: what no rail in use reaches is staged, whatever other
// rails the peer has it on. Under mu.
func (r *remote) refusal(g *region.Region, entry wire.KeyEntry) string {
	if !entry.Known {
		return goneThere
	}
	if g.Mem == region.VRAM || g.Len == 0 { // no rail has a key of no bytes, and none needs one
		return ""
	}
	for _, l := range r.links {
		for _, k := range entry.Rails {
			if l.up && int(k.Rail) == l.peer {
				return ""
			}
		}
	}
	why := fmt.Sprintf("the peer could not register its memory on any rail in use (%s); its log says why", strings.Join(r.path(), ","))
	r.e.log.Error("a peer's memory can't be used", "peer", r.name, "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "reason", why)
	return why
}

// goneThere is why a range of the peer's has no keys.
const goneThere = "the peer has deregistered its memory, or its metadata was unloaded"

// revocation is a REVOKE that waits for transfers to drain.
type revocation struct {
	id   uint64
	all  bool
	gone map[*region.Region]bool // regions of it that we had
	left map[*transfer]struct{}
}

// Revoke: the target takes regions back. Nothing new is posted on them; what is in flight drains, and a transfer that is posted whole ends well; then we answer. With
// nothing in flight at all we give up every key of the peer's, so that it need not ask again for the rest of a burst.
func (h initiatorHandler) Revoke(id uint64, regions []uint64) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	if r.state != ready || !h.current() {
		r.mu.Unlock()
		return
	}
	r.change()
	gone := map[*region.Region]bool{}
	for _, tid := range regions {
		if g := r.byTarget[tid]; g != nil {
			gone[g] = true
			r.dropKey(g)
		}
		if g := r.byTarget[tid]; g == nil && len(r.requests) > 0 { // its keys may be under way
			if r.early == nil {
				r.early = map[uint64]bool{}
			}
			r.early[tid] = true
		}
	}
	rev := &revocation{id: id, gone: gone, left: map[*transfer]struct{}{}}
	busy := r.e.activeOf(r)
	if len(busy) == 0 && len(r.requests) == 0 {
		rev.all = true
		for _, g := range r.byTarget {
			gone[g] = true
			r.dropKey(g)
		}
	}
	for _, g := range r.unloaded {
		if g.Keyed && (rev.all || slices.Contains(regions, g.TargetID)) && g.Pin() { // else its entry in the table may be another's
			gone[g] = true
			r.dropKey(g)
			r.e.regions.Regions.Unpin(g)
		}
	}
	for _, t := range busy {
		for _, g := range t.remotes {
			if gone[g] {
				rev.left[t] = struct{}{}
				break
			}
		}
	}
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
		t.takeBack()
	}
	r.settleRevokes()
}

// revoking says that some wait, as far as can be seen without waiting.
func (r *remote) revoking() bool {
	if !r.mu.TryRLock() {
		return false
	}
	defer r.mu.RUnlock()
	return len(r.revokes) > 0
}

// settleRevokes answers the revocations whose transfers have all drained.
func (r *remote) settleRevokes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := r.revokes[:0]
	for _, rev := range r.revokes {
		for t := range rev.left {
			if !t.busy() {
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
func (r *remote) answer(rev *revocation) {
	r.fenceBroken("a region is given back over a broken link")
	for g := range rev.gone {
		r.forget(g)
	}
	r.out.Revoked(rev.id, rev.all)
}

func (r *remote) dropKey(g *region.Region) {
	g.Core.SetLive(false)
	g.Keyed = false
	if g.Closed.Load() {
		return // unloaded: it may be there anew, under the peer's same number
	}
	delete(r.byTarget, g.TargetID)
	r.want(g)
}

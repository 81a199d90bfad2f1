package initiator

import (
	"slices"

	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// load enters a range of the peer's, once.
func (r *Session) load(rng wire.Range) (*region.Region, error) {
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
func (s *Sessions) UnloadRemote(id uint64) {
	g := s.Regions.Regions.Get(id)
	if g == nil || g.Peer == nil {
		return
	}
	r := g.Peer.(*transfer.Peer).Session().(*Session)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.regions[g.Range] == g {
		r.leave(g)
	}
}

// Load gives the peer's region of a range without a count: it lives as long as the session with ourselves. Implements transfer.Session.
func (r *Session) Load(rng wire.Range) (*region.Region, error) {
	r.mu.RLock()
	g := r.regions[rng]
	r.mu.RUnlock()
	if g != nil {
		return g, nil
	}
	return r.load(rng)
}

// retireAll lets go of all of the peer's regions. Under mu.
func (r *Session) retireAll() {
	for rng, g := range r.regions {
		delete(r.regions, rng)
		r.retire(g)
	}
}

// enter finds or enters a range of the peer's, with its parts. Under mu.
func (r *Session) enter(rng wire.Range) (*region.Region, error) {
	if g := r.regions[rng]; g != nil {
		g.Uses++
		return g, nil
	}
	g := &region.Region{Range: rng, Peer: r.peer, Slice: r.blob.Slice, Keys: region.Keys{Uses: 1}}
	parts, err := rng.Slices(g.Slice)
	if err != nil {
		return nil, status.Errorf(status.ErrInvalidParam, "metadata of agent %q: %w", r.name, err)
	}
	for i := 0; i < len(parts) && len(parts) > 1 && err == nil; i++ {
		var p *region.Region
		if p, err = r.enter(parts[i]); err == nil {
			g.Parts = append(g.Parts, p)
		}
	}
	if err == nil {
		err = r.s.Regions.Regions.Add(g)
	}
	if err != nil {
		for _, p := range g.Parts {
			r.leave(p)
		}
		return nil, err
	}
	r.regions[rng] = g
	if g.Parts == nil {
		r.want(g)
	}
	return g, nil
}

// leave ends one use of a range of the peer's. Under mu.
func (r *Session) leave(g *region.Region) {
	if g.Uses--; g.Uses > 0 {
		return
	}
	delete(r.regions, g.Range)
	r.retire(g)
	for _, p := range g.Parts {
		r.leave(p)
	}
}

// retire ends the loaded region's own pin. Under mu.
func (r *Session) retire(g *region.Region) {
	if g.Closed.Swap(true) {
		return
	}
	if r.byTarget[g.TargetID] == g {
		delete(r.byTarget, g.TargetID)
	}
	r.s.Regions.Regions.Unpin(g)
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
func (r *Session) forget(g *region.Region) {
	if g.Mem != region.VRAM {
		return
	}
	for _, l := range r.links {
		if m, ok := l.EP.(provider.Importer); ok {
			m.Forget(region.Index(g.ID))
		}
	}
}

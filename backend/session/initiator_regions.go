package session

import (
	"slices"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// load enters a range of the peer's memory, once, and counts the use.
func (r *Initiator) load(c wire.Claim) (*region.Region, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.enter(c)
	if err == nil && r.state == ready && (len(r.requests) == 0 || len(r.wanted) >= fewWanted) {
		r.pull()
	}
	return g, err
}

// UnloadRemote forgets a range of a peer. Transfers that use it keep what they need. It ignores a range of our own
// memory, because the agent also unloads its own metadata.
func (s *Initiators) UnloadRemote(id uint64) {
	g := s.Regions.Regions.Get(id)
	if g == nil || g.Peer == nil {
		return
	}
	r := g.Peer.(*transfer.Peer).Session().(*Initiator)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.regions[g.Claim] == g {
		r.leave(g)
	}
}

// Prep prepares a transfer to or from the peer: see transfer.Table.Prep.
func (r *Initiator) Prep(op int, local, remote transfer.List) (*transfer.Transfer, error) {
	var own map[uint64]*region.Region
	if r.peer.Self && len(local.Descs) == len(remote.Descs) { // else Prep refuses the lists
		var err error
		if own, err = r.loopback(remote); err != nil {
			return nil, err
		}
	}
	return r.s.Transfers.Prep(op, local, remote, r.peer, own)
}

// loopback finds regions of the session with ourselves for a list of our own metadata, which names our local regions.
func (r *Initiator) loopback(remote transfer.List) (map[uint64]*region.Region, error) {
	own := map[uint64]*region.Region{}
	for i := range remote.Descs {
		id := remote.Region(i)
		if _, ok := own[id]; ok {
			continue
		}
		g := r.s.Regions.Regions.Get(id)
		if g == nil || g.Closed.Load() {
			return nil, errcode.LocalUnknown.Errorf("descriptor %d: loopback memory is not registered", i)
		}
		if g.Peer == nil {
			var err error
			if g, err = r.loaded(g.Claim); err != nil {
				return nil, err
			}
		}
		own[id] = g
	}
	return own, nil
}

// loaded returns the region of a range in the session with ourselves. A known region gets no further use count: it lives as long as the
// session.
func (r *Initiator) loaded(c wire.Claim) (*region.Region, error) {
	r.mu.RLock()
	g := r.regions[c]
	r.mu.RUnlock()
	if g != nil {
		return g, nil
	}
	return r.load(c)
}

// Overlapping implements transfer.Session. Under mu.
func (r *Initiator) Overlapping(list []*region.Region) (out []*region.Region) {
	if r.peer.Self { // it has loaded only what transfers have used
		for _, own := range r.s.Regions.Overlapping(list) {
			if g := r.regions[own.Claim]; g == nil {
				_, _ = r.enter(own.Claim) // else the region table is full
			}
		}
	}
	over := region.NewCover(list)
	for c, g := range r.regions {
		if g.Slices == nil && over.Overlaps(c.Range) {
			out = append(out, g)
		}
	}
	return out
}

// retireLoaded retires what the agent has loaded. The peer's bounce buffers stay: they belong to the connection, which the agent may
// use again. Under mu.
func (r *Initiator) retireLoaded() {
	uses := map[*region.Region]int{}
	for _, g := range r.conn.rings {
		if uses[g]++; uses[g] == 1 {
			for _, p := range g.Slices {
				uses[p]++
			}
		}
	}
	for c, g := range r.regions {
		if g.Uses = uses[g]; g.Uses == 0 {
			delete(r.regions, c)
			r.retire(g)
		}
	}
}

// retireRings retires the peer's bounce buffers, because the connection has ended. Under mu.
func (r *Initiator) retireRings() {
	for _, g := range r.conn.rings {
		if r.regions[g.Claim] == g {
			r.leave(g)
		}
	}
	r.conn.rings = nil
}

// enter finds or adds a range of the peer's memory, with its parts. Under mu.
func (r *Initiator) enter(c wire.Claim) (*region.Region, error) {
	if g := r.regions[c]; g != nil {
		g.Uses++
		return g, nil
	}
	g := r.slab.New()
	g.Claim, g.Peer, g.Slice, g.Uses = c, r.peer, r.blob.Slice, 1
	var parts []wire.Range
	var err error
	if c.Sliced(g.Slice) {
		parts, err = c.Slices(g.Slice)
	}
	if err != nil {
		return nil, errcode.BadPeerRange.Errorf("metadata of agent %q: %w", r.name, err)
	}
	for i := 0; i < len(parts) && len(parts) > 1 && err == nil; i++ {
		var p *region.Region
		if p, err = r.enter(wire.Claim{Range: parts[i], Cap: c.Cap}); err == nil {
			g.Slices = append(g.Slices, p)
		}
	}
	if err == nil {
		err = r.s.Regions.Regions.Add(g)
	}
	if err != nil {
		for _, p := range g.Slices {
			r.leave(p)
		}
		return nil, err
	}
	r.regions[c] = g
	if g.Slices == nil {
		r.want(g)
	}
	return g, nil
}

// leave ends one use of a range of the peer's memory. Under mu.
func (r *Initiator) leave(g *region.Region) {
	if g.Uses--; g.Uses > 0 {
		return
	}
	delete(r.regions, g.Claim)
	r.retire(g)
	for _, p := range g.Slices {
		r.leave(p)
	}
}

// retire drops the loaded region's own pin. Under mu.
func (r *Initiator) retire(g *region.Region) {
	if g.Closed.Swap(true) {
		return
	}
	if r.byTarget[g.TargetID] == g {
		delete(r.byTarget, g.TargetID)
	}
	r.s.Regions.Regions.Unpin(g)
	if g.Pins.Load() == 0 {
		r.forget(g)
	} else if g.Keyed { // prepared transfers keep the region: the peer must still be able to revoke it
		if len(r.unloaded) == cap(r.unloaded) {
			r.unloaded = slices.DeleteFunc(r.unloaded, func(g *region.Region) bool { return g.Pins.Load() == 0 })
		}
		r.unloaded = append(r.unloaded, g)
	}
}

// forget unmaps a region of the peer where it was mapped. Nothing is posted on the region any more. Under mu.
func (r *Initiator) forget(g *region.Region) {
	for _, l := range r.links {
		if l.EP == nil {
			continue
		}
		switch h := l.Rail.Inner().(type) {
		case provider.Host:
			if g.Mem != region.VRAM {
				h.ForgetKey(l.EP, g.Core.Key(l.Peer)) // keys lie in the slots of the peer's rails
				continue
			}
			h.Forget(l.EP, region.Index(g.ID))
		case provider.Mapper:
			if g.Mem == region.VRAM || g.Rails.Load()&(1<<l.Peer) != 0 && l.Rail.Can().VRAMOnly {
				h.Forget(l.EP, region.Index(g.ID))
			}
		}
	}
}

package initiator

import (
	"fmt"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// LoadRemote notes a peer's range; its keys are asked for on the control channel in the background. ErrNotFound for a
// peer whose connection info was never loaded, and nothing is created.
func (s *Sessions) LoadRemote(name string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error) {
	r := s.Of(name)
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

// refusal says why the peer's range can't be used; "": it can. Memory of a GPU always can: what no rail in use reaches is staged, whatever other
// rails the peer has it on. Under mu.
func (r *Session) refusal(g *region.Region, entry wire.KeyEntry) string {
	if !entry.Known {
		return transfer.GoneThere
	}
	if g.Mem == region.VRAM || g.Len == 0 { // no rail has a key of no bytes, and none needs one
		return ""
	}
	for _, l := range r.links {
		for _, k := range entry.Rails {
			if l.Up && int(k.Rail) == l.Peer {
				return ""
			}
		}
	}
	why := fmt.Sprintf("the peer could not register its memory on any rail in use (%s); its log says why", strings.Join(r.path(), ","))
	r.s.Log.Error("a peer's memory can't be used", "peer", r.name, "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "reason", why)
	return why
}

package engine

import (
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// enter finds or enters a range of the peer's, with its parts. Under mu.
func (r *remote) enter(rng wire.Range) (*region.Region, error) {
	if g := r.regions[rng]; g != nil {
		g.Uses++
		return g, nil
	}
	g := &region.Region{Range: rng, Peer: r, Slice: r.blob.Slice, Keys: region.Keys{Uses: 1}}
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
		err = r.e.regions.Regions.Add(g)
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
func (r *remote) leave(g *region.Region) {
	if g.Uses--; g.Uses > 0 {
		return
	}
	delete(r.regions, g.Range)
	r.retire(g)
	for _, p := range g.Parts {
		r.leave(p)
	}
}

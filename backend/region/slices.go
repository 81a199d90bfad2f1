package region

import (
	"gorail/backend/access"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// A range longer than Registry.Slice is registered in slices (Region.Parts); peers do the same with their limit. Each slice has
// its own entry in the core's table, registrations, keys and revocations. One more region names the whole range for the agent.
// Transfers use only the slices.

// enterSliced finds or adds a local range with its slices: see enterLocal. Under mu. Peers know a range by its numbers alone,
// so that its access cannot differ between two registrations.
func (m *Registry) enterSliced(rng wire.Range, peers access.Rights) (r *Region, fresh []*Region, err error) {
	if r := m.local[rng]; r != nil {
		if r.Access != peers {
			return nil, nil, status.Errorf(status.ErrNotAllowed, "register %#x+%d with %s=%s: it is registered with %s=%s, and one range has one access; deregister it first",
				rng.Addr, rng.Len, access.Option, peers, access.Option, r.Access)
		}
		r.refs++
		return r, nil, nil
	}
	r = &Region{Range: rng, Access: peers, Slice: m.Slice, registration: registration{ready: make(chan struct{}), refs: 1, holders: map[Holder]struct{}{}}}
	parts, err := rng.Slices(m.Slice)
	if err != nil {
		return nil, nil, status.Errorf(status.ErrInvalidParam, "register %#x+%d (option mr_max): %w", rng.Addr, rng.Len, err)
	}
	for i := 0; i < len(parts) && len(parts) > 1 && err == nil; i++ {
		var p *Region
		var more []*Region
		if p, more, err = m.enterSliced(parts[i], peers); err == nil {
			r.Parts, fresh = append(r.Parts, p), append(fresh, more...)
		}
	}
	if err == nil {
		err = m.Regions.Add(r)
	}
	if err != nil {
		for _, p := range r.Parts {
			if p.refs--; p.refs == 0 { // no other thread has seen it
				delete(m.local, p.Range)
				m.Regions.Unpin(p)
			}
		}
		return nil, nil, err
	}
	m.local[rng] = r
	return r, append(fresh, r), nil
}

// leaveLocal removes a range without registrations. It returns the regions that end with it. Under mu.
func (m *Registry) leaveLocal(r *Region) []*Region {
	delete(m.local, r.Range)
	gone := []*Region{r}
	for _, p := range r.Parts {
		if p.refs--; p.refs == 0 {
			delete(m.local, p.Range)
			gone = append(gone, p)
		}
	}
	return gone
}

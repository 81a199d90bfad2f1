package region

import (
	"slices"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/wire"
)

// A range longer than Registry.Slice is registered in slices (Region.Slices); peers do the same with their limit. Each slice has
// its own entry in the core's table, registrations, keys and revocations. It has the capability of its registration, and ends
// with it. One more region names the whole range for the agent. Transfers use only the slices.

// enterSliced finds or adds a local range with its slices: see enterLocal. Under mu. Peers know a range by its numbers alone,
// so that its access cannot differ between two registrations.
func (m *Registry) enterSliced(c wire.Claim, peers option.Rights) (r *Region, fresh []*Region, err error) {
	if r := m.local[c.Range]; r != nil {
		if r.Access != peers {
			return nil, nil, errcode.AccessConflict.Errorf("register %#x+%d with %s=%s: it is registered with %s=%s, and one range has one access; deregister it first",
				c.Addr, c.Len, option.RemoteAccess, peers, option.RemoteAccess, r.Access)
		}
		r.refs++
		return r, nil, nil
	}
	var parts []wire.Range
	if c.Sliced(m.Slice) {
		parts, err = c.Slices(m.Slice)
	}
	if err != nil {
		return nil, nil, errcode.TooManySlices.Errorf("register %#x+%d (option mr_max): %w", c.Addr, c.Len, err)
	}
	if len(parts) <= 1 {
		if r, err = m.enterWhole(c, peers, make(chan struct{})); err != nil {
			return nil, nil, err
		}
		return r, []*Region{r}, nil
	}
	r = m.newRegion(c, peers, make(chan struct{}))
	for i := 0; i < len(parts) && err == nil; i++ {
		p := m.newRegion(wire.Claim{Range: parts[i], Cap: c.Cap}, peers, make(chan struct{}))
		if err = m.Regions.Add(p); err == nil {
			r.Slices = append(r.Slices, p)
		}
	}
	if err == nil {
		err = m.Regions.Add(r)
	}
	if err != nil {
		for _, p := range r.Slices { // no other thread has seen them
			m.Regions.Unpin(p)
		}
		return nil, nil, err
	}
	m.local[c.Range] = r
	for _, p := range r.Slices {
		m.slices[p.Range] = append(m.slices[p.Range], p)
	}
	return r, append(r.Slices[:len(r.Slices):len(r.Slices)], r), nil
}

// enterWhole adds a range that is registered in one piece. Under mu.
func (m *Registry) enterWhole(c wire.Claim, peers option.Rights, ready chan struct{}) (*Region, error) {
	r := m.newRegion(c, peers, ready)
	enter := m.Regions.Add
	if ready == nil {
		enter = m.Regions.reserve // fill prepares the entry
	}
	if err := enter(r); err != nil {
		return nil, err
	}
	m.local[c.Range] = r
	return r, nil
}

// newRegion: under mu.
func (m *Registry) newRegion(c wire.Claim, peers option.Rights, ready chan struct{}) *Region {
	r := m.slab.New()
	r.Claim, r.Access, r.Slice, r.ready, r.refs = c, peers, m.Slice, ready, 1
	return r
}

// leaveLocal removes a range without registrations. It returns the regions that end with it. From now on no transfer takes them: those that
// have them look for others (Regions.Ended). Under mu.
func (m *Registry) leaveLocal(r *Region) []*Region {
	delete(m.local, r.Range)
	for _, p := range r.Slices {
		p.refs = 0
		left := slices.DeleteFunc(m.slices[p.Range], func(g *Region) bool { return g == p })
		if m.slices[p.Range] = left; len(left) == 0 {
			delete(m.slices, p.Range)
		}
	}
	gone := append([]*Region{r}, r.Slices...)
	for _, g := range gone {
		g.Closed.Store(true)
	}
	m.Regions.Ended.Add(uint64(len(gone)))
	return gone
}

package region

import (
	"errors"
	"time"

	"gorail/backend/access"
	"gorail/backend/errcode"
	"gorail/backend/wire"
)

// Register registers a range of this process; see Engine.Register. peers is what peers may do with it.
func (m *Registry) Register(rng wire.Range, peers access.Rights) (uint64, error) {
	if err := checkRange(rng); err != nil {
		return 0, m.AdviseRefused(rng.Mem, err)
	}
	r, fresh, err := m.enterLocal(rng, peers)
	if err != nil {
		return 0, err
	}
	for _, f := range fresh {
		m.fill(f)
	}
	<-r.ready
	if rng.Mem == VRAM && len(fresh) == 0 && m.Regions.Refusal(r) == nil {
		m.refresh(r)
	}
	if why := m.Regions.Refusal(r); rng.Mem == VRAM && why != nil {
		return 0, m.AdviseRefused(rng.Mem, m.refuse(r, why))
	}
	return r.ID, nil
}

// fill registers a region that has just been added.
func (m *Registry) fill(r *Region) {
	defer close(r.ready)
	if r.Slices != nil {
		for _, p := range r.Slices {
			if <-p.ready; r.Refused == nil {
				r.Refused = p.Refused
			}
		}
		return
	}
	m.registerRails(r)
	m.set.LogReports()
	if r.Mem != VRAM {
		m.nearNode(r) // the pages are pinned now, so their node is known
	}
	r.Core.SetLive(true)
}

// enterLocal finds or adds the region of a range. The caller fills the fresh regions in this order, without mu, because
// deregistrations and peers' key requests take mu meanwhile.
func (m *Registry) enterLocal(rng wire.Range, peers access.Rights) (r *Region, fresh []*Region, err error) {
	c := m.secret.Claim(rng)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.enterSliced(c, peers)
}

// Deregister ends a registration; see Engine.Deregister.
func (m *Registry) Deregister(id uint64) (err error) {
	r := m.Regions.Get(id)
	if r == nil || r.Peer != nil {
		return errcode.UnknownRegion.Errorf("deregister: region %#x is not registered", id)
	}
	<-r.ready
	m.mu.Lock()
	if m.local[r.Range] != r {
		m.mu.Unlock()
		return errcode.UnknownRegion.Errorf("deregister: region %#x was deregistered before", id)
	}
	r.refs--
	if r.refs > 0 {
		m.mu.Unlock()
		return nil
	}
	gone := m.leaveLocal(r)
	holders := map[Holder][]uint64{}
	for _, g := range gone {
		for _, t := range m.holders.take(g.ID) {
			holders[t] = append(holders[t], g.ID)
		}
	}
	m.mu.Unlock()

	if left := m.takeBack(gone, holders, "local memory was deregistered"); left != nil {
		err = errcode.NotDeregistered.Errorf("deregister %#x+%d: %w", r.Addr, r.Len, left)
	}
	for _, g := range gone {
		if left := m.deregisterRails(g); left != nil {
			err = errors.Join(err, errcode.NotDeregistered.Errorf("deregister %#x+%d: %w", g.Addr, g.Len, left))
		}
		g.Closed.Store(true)
		m.Regions.Unpin(g)
	}
	return err
}

// takeBack ends all use of regions. It revokes their keys at the peers and waits for the answers. It aborts local transfers and
// drains them. An error means that the memory may still be in use.
func (m *Registry) takeBack(gone []*Region, holders map[Holder][]uint64, why string) error {
	deadline := time.Now().Add(m.opt.CancelTimeout)
	answers := map[Holder]<-chan struct{}{}
	for t, ids := range holders {
		answers[t] = t.Revoke(ids)
	}
	for _, g := range gone {
		g.Core.SetLive(false)
	}
	m.users.EndTransfers(gone, deadline, why)
	for t, answer := range answers {
		t.AwaitRevoked(answer, deadline)
	}
	return m.awaitCopies(gone, deadline)
}

// Close ends all registrations. The caller ensures that the regions are unused.
func (m *Registry) Close() {
	for _, r := range m.All() {
		_ = m.deregisterRails(r) // deregisterRails logs errors
	}
}

package region

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// Register registers a range of this process; see Engine.Register. peers is what peers may do with it.
func (m *Registry) Register(rng wire.Range, peers option.Rights) (uint64, error) {
	r, err := m.register(rng, peers, false)
	if err != nil {
		return 0, err
	}
	return r.ID, nil
}

// register registers a range; soon: the rails may get it with the next Settle.
func (m *Registry) register(rng wire.Range, peers option.Rights, soon bool) (*Region, error) {
	if err := checkRange(rng); err != nil {
		return nil, m.AdviseRefused(rng.Mem, err)
	}
	r, fresh, err := m.enterLocal(rng, peers, soon)
	if err != nil {
		return nil, err
	}
	for _, f := range fresh {
		m.fill(f)
	}
	if !soon || r.ready != nil {
		m.await(r)
	}
	if rng.Mem == VRAM && len(fresh) == 0 && m.Regions.Refusal(r) == nil {
		m.refresh(r)
	}
	if rng.Mem != VRAM {
		return r, nil
	}
	if why := m.Regions.Refusal(r); why != nil {
		return nil, m.AdviseRefused(rng.Mem, m.refuse(r, why))
	}
	return r, nil
}

// fill registers a region that has just been added.
func (m *Registry) fill(r *Region) {
	defer r.setFilled()
	if r.Slices != nil {
		for _, p := range r.Slices {
			if m.await(p); r.Refused == nil {
				r.Refused = p.Refused
			}
		}
		return
	}
	if r.ready == nil {
		m.Regions.prepare(r)
	}
	m.registerRails(r)
	m.set.LogReports()
	if r.Mem != VRAM {
		m.nearNode(r) // the pages are pinned now, so their node is known
	}
	r.Core.SetLive(true)
}

// setFilled ends the wait for a region.
func (r *Region) setFilled() {
	r.filled.Store(true)
	if r.ready != nil {
		close(r.ready)
	}
}

// await returns when all rails have been tried for a region.
func (m *Registry) await(r *Region) {
	if r.ready != nil {
		<-r.ready
	} else if !r.filled.Load() {
		m.Settle()
	}
}

// enterLocal finds or adds the region of a range. The caller fills the fresh regions in this order, without mu, because
// deregistrations and peers' key requests take mu meanwhile. soon: a single fresh region waits for Settle instead.
func (m *Registry) enterLocal(rng wire.Range, peers option.Rights, soon bool) (r *Region, fresh []*Region, err error) {
	m.destructor.registers()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.caps.Claim(rng)
	if r := m.local[rng]; r == nil && soon && !rng.Sliced(m.Slice) {
		r, err := m.enterWhole(c, peers, nil)
		if err == nil {
			m.later.add(r)
		}
		return r, nil, err
	}
	return m.enterSliced(c, peers)
}

// Deregister ends a registration; see Engine.Deregister.
func (m *Registry) Deregister(id uint64) (err error) {
	m.destructor.begins()
	defer m.destructor.ends(m.After)
	r := m.Regions.Get(id)
	if r == nil || r.Peer != nil {
		return errcode.UnknownRegion.Errorf("deregister: region %#x is not registered", id)
	}
	m.await(r)
	if r.Mem == VRAM || m.HasLent.Load() {
		m.renewals.Lock()
		defer m.renewals.Unlock()
	}
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
	holders := map[*Holder][]uint64{}
	for _, g := range gone {
		for _, t := range m.holders.take(g.ID) {
			holders[t] = append(holders[t], g.ID)
		}
	}
	m.mu.Unlock()

	if left := m.takeBack(gone, holders); left != nil {
		err = errcode.NotDeregistered.Errorf("deregister %#x+%d: %w", r.Addr, r.Len, left)
	}
	for _, g := range gone {
		if left := errors.Join(m.deregisterRails(g), m.unpinGPU(g)); left != nil {
			err = errors.Join(err, errcode.NotDeregistered.Errorf("deregister %#x+%d: %w", g.Addr, g.Len, left))
		}
		m.Regions.Unpin(g)
	}
	return err
}

// takeBack ends all use of regions. It revokes their keys at the peers and waits for the answers. It aborts local transfers and
// drains them. An error means that the memory may still be in use.
func (m *Registry) takeBack(gone []*Region, holders map[*Holder][]uint64) error {
	deadline := time.Now().Add(m.opt.CancelTimeout)
	answers := revoke(holders, false)
	for _, g := range gone {
		g.Core.SetLive(false)
	}
	m.endTransfers(gone, deadline, Deregistered)
	var lent error
	for t, answer := range answers {
		if !t.await(answer, deadline, Deregistered) && t.Lent.Load() && slices.ContainsFunc(gone, m.lendable) {
			lent = errStillMapped
		}
	}
	return errors.Join(lent, m.awaitCopies(gone, deadline))
}

// lendable reports that peers of other hosts may have mapped a region.
func (m *Registry) lendable(g *Region) bool {
	return g.Mem == VRAM || slices.ContainsFunc(m.set.List, func(r *rails.Rail) bool { return r.Can().VRAMOnly && g.Rails.Load()&(1<<r.Index) != 0 })
}

// errStillMapped is why memory that is mapped over NVLink may still be accessed: no device of ours ends that.
var errStillMapped = errors.New("a peer of another host that may map the memory over NVLink has not said within cancel_timeout that it has unmapped it: until its process ends or answers, its GPU may access the memory")

// Close ends all registrations on rails. The caller ensures that the regions are unused, and calls UnpinAll.
func (m *Registry) Close() {
	m.Settle()
	for _, r := range m.All() {
		_ = m.deregisterRails(r) // deregisterRails logs errors
	}
}

// UnpinAll ends the pins of all regions. Each may wait for all work of the GPUs.
func (m *Registry) UnpinAll() {
	for _, r := range m.All() {
		if err := m.unpinGPU(r); err != nil {
			m.log.Warn("memory stays pinned for GPU copies", "addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "err", err)
		}
	}
}

// memNames maps nixl_mem_t to the name of the memory type.
var memNames = [...]string{"DRAM", VRAM: "VRAM", 2: "BLK", 3: "OBJ", 4: "FILE"}

func MemName(mem int32) string {
	if mem >= 0 && int(mem) < len(memNames) {
		return memNames[mem]
	}
	return fmt.Sprintf("type %d", mem)
}

// checkRange refuses ranges that cannot be memory of this process. An agent with this backend may register any memory type with
// it. The address of FILE memory is an offset in a file, and peers would write to that address.
func checkRange(rng wire.Range) error {
	switch {
	case rng.Mem != DRAM && rng.Mem != VRAM:
		return errcode.MemoryKind.Errorf("register %s memory %#x+%d: GORAIL moves DRAM and VRAM alone; register it with a storage backend",
			MemName(rng.Mem), rng.Addr, rng.Len)
	case rng.Addr+rng.Len < rng.Addr:
		return errcode.BadRange.Errorf("register %s %#x+%d: the range runs past the end of the address space", MemName(rng.Mem), rng.Addr, rng.Len)
	case rng.Addr == 0 && rng.Len > 0:
		return errcode.BadRange.Errorf("register %s %#x+%d: there is no memory at address 0; was the buffer allocated?",
			MemName(rng.Mem), rng.Addr, rng.Len)
	}
	return nil
}

// AdviseRefused adds NIXL's reaction to a refused registration. The agent keeps an empty list of the memory type, and no peer
// can load its metadata.
func (m *Registry) AdviseRefused(mem int32, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for rng := range m.local {
		if rng.Mem == mem {
			return err
		}
	}
	return fmt.Errorf("%w (NIXL's agent now has an empty list of %s memory, and peers refuse its metadata until a registration of such memory with "+
		"this backend succeeds, or an empty list of it is deregistered)", err, MemName(mem))
}

// Refused is why no rail has a local region; nil: a rail has it, or there is no such region.
func (m *Registry) Refused(id uint64) error {
	if r := m.Regions.Get(id); r != nil && r.Peer == nil {
		return m.Regions.Refusal(r)
	}
	return nil
}

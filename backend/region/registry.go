package region

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/rails"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// Registry is the memory that this side has registered, by range. Its methods may be called from any thread; none is called with mu held.
type Registry struct {
	opt     option.Options
	log     *slog.Logger
	core    *core.Core
	set     *rails.Set
	copier  copier
	users   Users
	Slice   uint64 // regions of more bytes are registered as several; 0: none is
	Regions Table

	Flushes atomic.Bool // a READ has ended when its check says so, which makes a GPU see it

	renewMu sync.Mutex // before all others: one region at a time is registered anew
	mu      sync.Mutex
	local   map[wire.Range]*Region
}

// Holder is a session of a peer that has keys of ours.
type Holder interface {
	// Revoke tells the peer that regions go away; the channel closes with its answer.
	Revoke(regions []uint64) <-chan struct{}
	// AwaitRevoked waits for the answer until the deadline; a peer that does not answer loses its endpoint.
	AwaitRevoked(done <-chan struct{}, deadline time.Time)
}

// Users is who has transfers over regions.
type Users interface {
	// EndTransfers aborts those over regions that go away, and waits until they use no memory of ours; after the deadline their endpoints are closed.
	EndTransfers(gone []*Region, deadline time.Time, why string)
}

// copier copies memory of GPUs.
type copier interface {
	Check(addr, length uint64, device int) error
	Pin(addr, length uint64) error
	Unpin(addr, length uint64) error
}

// NewRegistry has no region. The rails are open.
func NewRegistry(opt option.Options, log *slog.Logger, c *core.Core, set *rails.Set, gpus copier, u Users) *Registry {
	m := &Registry{opt: opt, log: log, core: c, set: set, copier: gpus, users: u, Regions: Table{core: c, slots: core.Slots(opt.MaxRails)},
		local: map[wire.Range]*Region{}}
	m.Slice = m.sliceSize()
	return m
}

// Register makes a range of this process usable; see Engine.Register.
func (m *Registry) Register(rng wire.Range) (uint64, error) {
	if err := checkRange(rng); err != nil {
		return 0, m.adviseRefused(rng.Mem, err)
	}
	r, fresh, err := m.enterLocal(rng)
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
		return 0, m.adviseRefused(rng.Mem, m.refuse(r, why))
	}
	return r.ID, nil
}

// fill registers a region that was just entered.
func (m *Registry) fill(r *Region) {
	defer close(r.ready)
	if r.Parts != nil {
		for _, p := range r.Parts {
			if <-p.ready; r.Refused == nil {
				r.Refused = p.Refused
			}
		}
		return
	}
	m.registerRails(r)
	m.set.News()
	if r.Mem != VRAM {
		m.nearNode(r) // pinned pages are there now
	}
	r.Core.SetLive(true)
}

// enterLocal finds or enters the region of a range; fresh are those that the caller has to fill, in this order, without
// mu, which deregistrations and peers that ask for keys want meanwhile.
func (m *Registry) enterLocal(rng wire.Range) (r *Region, fresh []*Region, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.enterSliced(rng)
}

// Deregister ends a registration; see Engine.Deregister.
func (m *Registry) Deregister(id uint64) (err error) {
	r := m.Regions.Get(id)
	if r == nil || r.Peer != nil {
		return status.Errorf(status.ErrNotFound, "deregister: region %#x is not registered", id)
	}
	<-r.ready
	m.mu.Lock()
	if r.refs == 0 {
		m.mu.Unlock()
		return status.Errorf(status.ErrNotFound, "deregister: region %#x was deregistered before", id)
	}
	r.refs--
	if r.refs > 0 {
		m.mu.Unlock()
		return nil
	}
	gone := m.leaveLocal(r)
	holders := map[Holder][]uint64{}
	for _, g := range gone {
		for t := range g.holders {
			holders[t] = append(holders[t], g.ID)
		}
	}
	m.mu.Unlock()

	if left := m.takeBack(gone, holders, "its local memory was deregistered"); left != nil {
		err = status.Errorf(status.ErrBackend, "deregister %#x+%d: %w", r.Addr, r.Len, left)
	}
	for _, g := range gone {
		if left := m.deregisterRails(g); left != nil {
			err = errors.Join(err, status.Errorf(status.ErrBackend, "deregister %#x+%d: %w", g.Addr, g.Len, left))
		}
		g.Closed.Store(true)
		m.Regions.Unpin(g)
	}
	return err
}

// takeBack ends all use of regions: peers that hold their keys are told and waited for, our own transfers are aborted and drained. An error:
// their memory may still be in use.
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

// KeysFor gives the keys of ranges, and notes that the peer has them, unless its session is closing.
func (m *Registry) KeysFor(ranges []wire.Range, to Holder, closing *atomic.Bool) []wire.KeyEntry {
	entries := make([]wire.KeyEntry, len(ranges))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, rng := range ranges {
		r := m.local[rng]
		if r == nil || closing.Load() || !r.registered() || r.stale {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Rails: r.RailKeys()}
		r.holders[to] = struct{}{}
	}
	return entries
}

// DropHolder notes that a peer has no key any more.
func (m *Registry) DropHolder(h Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.local {
		delete(r.holders, h)
	}
}

// Known says whether a range lies inside a region.
func (m *Registry) Known(rng wire.Range) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for own, r := range m.local {
		if own.Dev == rng.Dev && own.Mem == rng.Mem && r.Contains(rng.Addr, rng.Len) {
			return true
		}
	}
	return false
}

// Find is the region of exactly a range; nil: there is none.
func (m *Registry) Find(rng wire.Range) *Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.local[rng]
}

// Pause holds up whoever looks for regions, such as peers that ask for keys, until resume is called.
func (m *Registry) Pause() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}

// All are the regions that are there.
func (m *Registry) All() []*Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.local))
}

// Close ends the registrations of all; nobody uses them any more.
func (m *Registry) Close() {
	for _, r := range m.All() {
		_ = m.deregisterRails(r) // it is in the log
	}
}

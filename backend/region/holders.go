package region

import (
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// Holder is a session of a peer that may hold our keys, and the REVOKEs that it has not answered.
type Holder struct {
	Salt    [16]byte                                        // of the session's keys: see provider.MR
	NextID  func() uint64                                   // of a REVOKE
	Send    func(id uint64, regions []uint64, renewed bool) // a REVOKE; renewed: the regions stay registered, with new keys
	Overdue func(why string)                                // no answer has come by the deadline: the peer's endpoints are closed
	Late    func()                                          // no answer to regions that stay registered: the peer may still have the old memory mapped
	Closing atomic.Bool                                     // it gets no keys any more
	Lent    atomic.Bool                                     // it has fabric handles: only its answer says that the peer has unmapped memory

	mu    sync.Mutex
	ended bool
	waits map[uint64]chan struct{} // closed with the answer, or with the end of the session
}

// revoke revokes the peer's keys of regions. The channel closes with the peer's answer.
func (h *Holder) revoke(regions []uint64, renewed bool) <-chan struct{} {
	done, id := make(chan struct{}), h.NextID()
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		close(done)
		return done
	}
	if h.waits == nil {
		h.waits = map[uint64]chan struct{}{}
	}
	h.waits[id] = done
	h.mu.Unlock()
	h.Send(id, regions, renewed)
	return done
}

// Answered takes the peer's answer to a REVOKE.
func (h *Holder) Answered(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if done := h.waits[id]; done != nil {
		delete(h.waits, id)
		close(done)
	}
}

// End ends all waits: the session has ended.
func (h *Holder) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for id, done := range h.waits {
		delete(h.waits, id)
		close(done)
	}
}

// await waits for the answer until the deadline. why is Deregistered or Anew. False: none has come.
func (h *Holder) await(done <-chan struct{}, deadline time.Time, why string) bool {
	timer := time.NewTimer(time.Until(deadline)) //limit:revocations
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		select {
		case <-done: // both channels are ready: the peer did answer
			return true
		default:
		}
	}
	h.Overdue(why)
	return false
}

// KeysFor returns the keys of claimed ranges and records the peer as their holder, unless its session is closing. A claim
// without the right capability is answered as if nothing were registered.
func (m *Registry) KeysFor(claims []wire.Claim, to *Holder) []wire.KeyEntry {
	entries, salt := make([]wire.KeyEntry, len(claims)), to.Salt
	m.Settle()
	m.enter(claims)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range claims {
		r := m.claimed(c)
		if r == nil || to.Closing.Load() || !r.filled.Load() {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Access: r.Access, Rails: r.RailKeys(salt)}
		m.holders.note(to, r.ID)
	}
	return entries
}

// enter lets peers reach claimed regions on rails that wait for that (provider.Enterer): they get host memory now. It is done without mu, since it
// takes the rails' locks, and at once for all.
func (m *Registry) enter(claims []wire.Claim) {
	m.filling.Lock()
	defer m.filling.Unlock()
	fresh := m.unentered(claims)
	if len(fresh) == 0 {
		return
	}
	for i, rl := range m.set.List {
		e, has := rl.Inner().(provider.Enterer)
		if !has {
			continue
		}
		for _, r := range fresh {
			if r.deferred.Load()&(1<<i) != 0 {
				m.registerOn(r, rl, false)
				r.deferred.And(^uint64(1 << i))
			}
		}
		if e.EnterAll(m.handles(fresh, i)) == nil {
			continue
		}
		for _, r := range fresh {
			if err := e.EnterAll(m.handles([]*Region{r}, i)); err != nil {
				m.unreached(r, i, err)
			}
		}
	}
}

// unreached notes that peers cannot reach a region on a rail, and logs the first of a rail.
func (m *Registry) unreached(r *Region, rail int, err error) {
	m.mu.Lock()
	r.unreached |= 1 << rail
	m.mu.Unlock()
	if rl := m.set.List[rail]; rl.First("enter") {
		m.log.Warn("memory not registered on a rail, and peers reach it over others", "rail", rl.Name(), "err", err, errcode.Key, errcode.MemoryNotOnRail)
	}
}

// unentered returns the claimed regions that rails have not been told about since they got them.
func (m *Registry) unentered(claims []wire.Claim) (fresh []*Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range claims {
		if r := m.named(c); r != nil && r.filled.Load() && r.Slices == nil && !r.entered {
			r.entered = true
			fresh = append(fresh, r)
		}
	}
	return fresh
}

// handles are the registrations of regions on one rail.
func (m *Registry) handles(of []*Region, rail int) (list []provider.MR) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range of {
		if r.mrs[rail] == nil {
			continue
		}
		if is, has := r.mrs[rail].Handle(); has {
			list = append(list, is)
		}
	}
	return list
}

// DropHolder records that a peer no longer holds keys.
func (m *Registry) DropHolder(h *Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders.drop(h)
}

// Stays reports that the agent is not being destroyed: memory that is gone was deregistered by an application that goes on.
func (m *Registry) Stays() bool { return m.destructor.stays.Load() }

// Unloading notes that the agent unloads metadata.
func (m *Registry) Unloading() { m.destructor.unloads(m.After) }

// Ending notes that the engine ends.
func (m *Registry) Ending() { m.destructor.begins() }

// holders notes which sessions hold keys of which local regions: one bit for each session and index of the table. A
// session with the keys of 100,000 regions costs 12 KiB; a map entry for each key costs 33 bytes instead. Registry.mu
// guards it. Make it with newHolders.
type holders struct {
	place map[*Holder]int // in list
	list  []holding       // a slice: each deregistration looks at all
}

type holding struct {
	by   *Holder
	bits []uint64
}

func newHolders() *holders { return &holders{place: map[*Holder]int{}} }

// bit is the place of a region: the index of its id in the table.
func bit(id uint64) (word int, mask uint64) {
	index := uint32(id)
	return int(index / 64), 1 << (index % 64)
}

// note notes that a session gets the keys of a region.
func (h *holders) note(by *Holder, id uint64) {
	at, known := h.place[by]
	if !known {
		at = len(h.list)
		h.place[by] = at
		h.list = append(h.list, holding{by: by})
	}
	word, mask := bit(id)
	bits := &h.list[at].bits
	if more := word + 1 - len(*bits); more > 0 {
		*bits = append(*bits, make([]uint64, more)...) //limit:holders
	}
	(*bits)[word] |= mask
}

// take returns the sessions that hold keys of a region, and forgets it: its index may get another region.
func (h *holders) take(id uint64) (list []*Holder) {
	word, mask := bit(id)
	for _, s := range h.list {
		if word < len(s.bits) && s.bits[word]&mask != 0 {
			s.bits[word] &^= mask
			list = append(list, s.by)
		}
	}
	return list
}

// drop forgets a session.
func (h *holders) drop(by *Holder) {
	at, known := h.place[by]
	if !known {
		return
	}
	last := len(h.list) - 1
	h.list[at] = h.list[last]
	h.place[h.list[at].by] = at
	h.list[last] = holding{}
	h.list = h.list[:last]
	delete(h.place, by)
}

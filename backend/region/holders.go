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
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Access: r.Access, Rails: m.RailKeys(r, salt)}
		m.holders.note(to, r.ID)
	}
	return entries
}

// enter lets peers reach claimed regions on rails that wait for that (provider.Enterer): at once for all, and without mu, since it takes the rails' locks.
// A peer gets no key of a rail without room, and reaches the memory over others.
func (m *Registry) enter(claims []wire.Claim) {
	for i, list := range m.toEnter(claims) {
		if len(list) == 0 {
			continue
		}
		rl := m.set.List[i]
		if err := rl.Inner().(provider.Enterer).EnterAll(list); err != nil && rl.First("enter") {
			m.log.Warn("memory not registered on a rail for peers, which reach it over other rails; deregister memory that peers do not need", "rail", rl.Name(), "err", err,
				errcode.Key, errcode.MemoryNotOnRail)
		}
	}
}

// toEnter returns the registrations of claimed regions on rails that are an Enterer, by rail.
func (m *Registry) toEnter(claims []wire.Claim) [][]provider.MR {
	lists := make([][]provider.MR, len(m.set.List))
	var on []int
	for i := range m.set.List {
		if m.enters(i) {
			on, lists[i] = append(on, i), make([]provider.MR, 0, len(claims))
		}
	}
	if len(on) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range claims {
		r := m.named(c)
		if r == nil || !r.filled.Load() || r.Slices != nil {
			continue
		}
		for _, i := range on {
			if r.mrs[i] == nil {
				continue
			}
			if mr, has := r.mrs[i].Handle(); has {
				lists[i] = append(lists[i], mr)
			}
		}
	}
	return lists
}

func (m *Registry) enters(rail int) bool {
	_, is := m.set.List[rail].Inner().(provider.Enterer)
	return is
}

// RailKeys returns the keys that a peer needs for a local region, in the session with that salt. Under mu.
func (m *Registry) RailKeys(r *Region, salt [16]byte) []wire.RailKey {
	var keys []wire.RailKey
	for i, ref := range r.mrs {
		if ref == nil {
			continue
		}
		mr, has := ref.Handle()
		if !has {
			continue
		}
		key := mr.Key(salt)
		if key == 0 && m.enters(i) { // no room
			continue
		}
		base, _ := ref.Range()
		keys = append(keys, wire.RailKey{Rail: uint8(i), Key: key, Base: mr.Base() + (r.Addr - base)})
	}
	return keys
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

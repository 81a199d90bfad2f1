package region

import (
	"sync/atomic"

	"gorail/backend/wire"
)

// KeysFor returns the keys of claimed ranges and records the peer as their holder, unless its session is closing. A claim
// without the right capability is answered as if nothing were registered.
func (m *Registry) KeysFor(claims []wire.Claim, to Holder, closing *atomic.Bool) []wire.KeyEntry {
	entries, salt := make([]wire.KeyEntry, len(claims)), to.KeySalt()
	m.Settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range claims {
		r := m.claimed(c)
		if r == nil || closing.Load() || !r.filled.Load() {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.ID, Gen: uint32(r.ID >> 32), Access: r.Access, Rails: r.RailKeys(salt)}
		m.holders.note(to, r.ID)
	}
	return entries
}

// DropHolder records that a peer no longer holds keys.
func (m *Registry) DropHolder(h Holder) {
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

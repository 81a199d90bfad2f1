package region

import (
	"time"

	"gorail/backend/access"
	"gorail/backend/wire"
)

// fillAfter is how long a region may wait for Settle. Applications register many regions in a row, and their peers need the first one
// milliseconds later.
const fillAfter = time.Millisecond

// RegisterSoon is Register for a caller that does not use the region's rails. Whoever does calls Settle first.
func (m *Registry) RegisterSoon(rng wire.Range, peers access.Rights) (*Region, error) {
	soon := m.mayWait(rng)
	r, err := m.register(rng, peers, soon)
	if soon && err == nil && m.unready.Load() > 0 && m.armed.CompareAndSwap(false, true) {
		m.After(fillAfter, func() {
			m.armed.Store(false)
			m.Settle()
		})
	}
	return r, err
}

// mayWait reports that all rails take a range as well later.
func (m *Registry) mayWait(rng wire.Range) bool {
	if m.After == nil || rng.Mem != DRAM {
		return false
	}
	for _, rl := range m.set.List {
		if !rl.Opened() { // FillRail registers the range
			continue
		}
		if !rl.Inner().Later(rng.Addr, rng.Len) {
			return false
		}
	}
	return true
}

// Settle registers the waiting regions on the rails. It returns when all regions that were entered before have been tried. The
// caller holds no lock of the Registry.
func (m *Registry) Settle() {
	if m.unready.Load() == 0 {
		return
	}
	m.filling.Lock()
	defer m.filling.Unlock()
	m.mu.Lock()
	list := m.list
	m.list = m.empty
	m.mu.Unlock()
	for i, r := range list {
		m.fill(r)
		list[i] = nil
	}
	m.unready.Add(-int32(len(list)))
	m.empty = list[:0]
}

package link

import (
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/stats"
)

// meter keeps a link's counters after the link is freed. The core counts without locks; mu only keeps the link alive
// while read reads its counters.
type meter struct {
	fences, stalls atomic.Uint64

	mu   sync.Mutex
	l    core.Link
	last core.Tally // set when l is freed
}

// begin is called when the link exists.
func (m *meter) begin(l core.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.l = l
}

// end is called before the link is freed, with nothing of it posted any more.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = m.l.Tally()
	m.last.InFlight = 0
	m.l = core.Link{}
}

func (m *meter) read() core.Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.last
	if m.l.Exists() {
		t = m.l.Tally()
	}
	t.Fences, t.Stalls = m.fences.Load(), m.stalls.Load()
	return t
}

// queues takes the rail's lock. The link is not freed meanwhile.
func (m *meter) queues() stats.Queues {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.l.Exists() {
		return stats.Queues{}
	}
	s := m.l.Stats()
	return stats.Queues{Window: s.Window, Ops: s.InflightOps, Credits: s.Credits, Messages: s.QueuedMsgs, Transfers: s.QueuedSubs}
}

// PhaseName is the phase in the words of the counters.
func (l *Link) PhaseName() string {
	if !l.Up && l.Phase == failover.Working {
		return "connecting"
	}
	return [...]string{failover.Working: stats.Working, failover.Fencing: "fencing", failover.Draining: "draining", failover.BackingOff: "backing off",
		failover.Probing: "probing"}[l.Phase]
}

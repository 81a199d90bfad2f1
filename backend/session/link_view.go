package session

// What the counters show of sessions and their links, also after their end.

import (
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/stats"
)

// PhaseName is the phase in the words of the counters.
func (l *Link) PhaseName() string {
	if !l.Up && l.Phase == Working {
		return "connecting"
	}
	return [...]string{Working: stats.Working, Fencing: "fencing", Draining: "draining", BackingOff: "backing off",
		Probing: "probing"}[l.Phase]
}

// meter keeps a link's counters after the link is freed. The core counts without locks; mu only keeps the link alive
// while read reads its counters.
type meter struct {
	fences, stalls atomic.Uint64

	mu   sync.Mutex
	l    core.Link
	last core.Tally // set when l is freed
	seen            // the engine's sweeper has it
}

// seen is what looks at a link have found.
type seen struct {
	completions uint64
	busy        bool      // operations were in flight
	at          time.Time // when there were others, or nothing was in flight at the look before
}

// stallsAfter is how long operations are in flight without a completion before the peer is asked: about the time between two looks.
const stallsAfter = 15 * time.Millisecond

// stall reports whether the link has operations in flight, and looks have found no completion for a while. begins: the look before found none in flight, so these
// may have been posted just now, if it was long ago.
func (m *meter) stall(now time.Time) (stalls, begins bool) {
	t := m.read()
	begins = t.InFlight > 0 && !m.busy
	if t.InFlight == 0 || t.Completions != m.completions || begins && now.Sub(m.at) >= stallsAfter {
		m.seen.at = now
	}
	m.seen.completions, m.seen.busy = t.Completions, t.InFlight > 0
	return now.Sub(m.at) >= stallsAfter, begins
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

// View is a session for the counters: its names are read at once, its counters when Read is called.
type View struct {
	peer   stats.Peer
	meters []*meter // of its links
}

// NewView makes the view of a session. peerRail gives the name of the peer's rail with an index.
func NewView(p stats.Peer, links []*Link, peerRail func(n int) string) View {
	v := View{peer: p}
	for _, l := range links {
		v.meters = append(v.meters, l.meter)
		v.peer.Links = append(v.peer.Links, stats.Link{Rail: l.Rail.Name(), Index: l.Rail.Index, PeerRail: peerRail(l.Peer),
			PeerIndex: l.Peer, Number: l.Num, Phase: l.PhaseName()})
	}
	return v
}

// Session is the number of the session, and Agent the peer's name.
func (v View) Session() uint64 { return v.peer.Session }
func (v View) Agent() string   { return v.peer.Agent }

// Read reads the counters.
func (v View) Read() stats.Peer {
	p := v.peer
	p.Links = make([]stats.Link, len(v.peer.Links))
	for i, l := range v.peer.Links {
		t := v.meters[i].read()
		l.Counts, l.InFlight, l.Rate, l.Idle, l.Queues = stats.Counts(t.Counts), t.InFlight, t.Rate, Idle(t.Last), v.meters[i].queues()
		p.Links[i] = l
	}
	return p
}

// Idle is the time since a completion at core.Now.
func Idle(last time.Duration) stats.Since {
	if last == 0 {
		return stats.Never
	}
	return stats.Since(max(core.Now()-last, 0))
}

// History holds the sessions that ended last.
type History struct {
	mu   sync.Mutex
	list []View
}

const mostHistory = 64

// Add notes a session that ends, as lost or closed. A session without links has counted nothing.
func (h *History) Add(v View, state string) {
	if len(v.meters) == 0 {
		return
	}
	v.peer.State = state
	for i := range v.peer.Links {
		v.peer.Links[i].Phase = "closed"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == mostHistory {
		h.list = append(h.list[:0], h.list[1:]...)
	}
	h.list = append(h.list, v) //limit:ended_sessions
}

// Besides returns the sessions of the history that are not in live.
func (h *History) Besides(live []View) (list []View) {
	known := map[*meter]bool{}
	for _, v := range live {
		for _, m := range v.meters {
			known[m] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.list {
		if !known[v.meters[0]] {
			list = append(list, v)
		}
	}
	return list
}

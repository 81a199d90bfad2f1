package engine

import (
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/stats"
)

// meter is what is left of a link when it is gone: its counters. The core counts without locks; mu only sees to it that the
// link is there while they are read.
type meter struct {
	fences, stalls atomic.Uint64

	mu   sync.Mutex
	l    core.Link
	last core.Tally // when l has gone
}

// begin: the link is there.
func (m *meter) begin(l core.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.l = l
}

// end: the link is about to be freed, with nothing of it posted any more.
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

// fenced and stalled count for the link and its rail.
func (l *link) fenced() {
	l.meter.fences.Add(1)
	l.rail.Fences.Add(1)
}

func (l *link) stalled() {
	l.meter.stalls.Add(1)
	l.rail.Stalls.Add(1)
}

// phaseName is the phase as the counters have it.
func (l *link) phaseName() string {
	if !l.up && l.phase == working {
		return "connecting"
	}
	return [...]string{working: stats.Working, fencing: "fencing", draining: "draining", resting: "resting", probing: "probing"}[l.phase]
}

// view is a session as the counters have it: names now, figures when they are asked for.
type view struct {
	peer   stats.Peer
	meters []*meter // of its links
}

func newView(p stats.Peer, links []*link, peerRail func(n int) string) view {
	v := view{peer: p}
	for _, l := range links {
		v.meters = append(v.meters, l.meter)
		v.peer.Links = append(v.peer.Links, stats.Link{Rail: l.rail.Name(), Index: l.rail.Index, PeerRail: peerRail(l.peer),
			PeerIndex: l.peer, Number: l.num, Phase: l.phaseName()})
	}
	return v
}

func (v view) read() stats.Peer {
	p := v.peer
	p.Links = make([]stats.Link, len(v.peer.Links))
	for i, l := range v.peer.Links {
		t := v.meters[i].read()
		l.Counts, l.InFlight, l.Rate = stats.Counts(t.Counts), t.InFlight, t.Rate
		p.Links[i] = l
	}
	return p
}

// history has the sessions that ended last.
type history struct {
	mu   sync.Mutex
	list []view
}

const mostHistory = 64

// add notes a session that ends, as lost or closed. One without links has counted nothing.
func (h *history) add(v view, state string) {
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
	h.list = append(h.list, v)
}

// all gives those that are not among the given ones.
func (h *history) all(live []view) (list []view) {
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

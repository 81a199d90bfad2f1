package link

import (
	"sync"

	"gorail/backend/stats"
)

// View is a session as the counters have it: names now, figures when they are asked for.
type View struct {
	peer   stats.Peer
	meters []*meter // of its links
}

func NewView(p stats.Peer, links []*Link, peerRail func(n int) string) View {
	v := View{peer: p}
	for _, l := range links {
		v.meters = append(v.meters, l.meter)
		v.peer.Links = append(v.peer.Links, stats.Link{Rail: l.Rail.Name(), Index: l.Rail.Index, PeerRail: peerRail(l.Peer),
			PeerIndex: l.Peer, Number: l.Num, Phase: l.phaseName()})
	}
	return v
}

// Read gives the figures.
func (v View) Read() stats.Peer {
	p := v.peer
	p.Links = make([]stats.Link, len(v.peer.Links))
	for i, l := range v.peer.Links {
		t := v.meters[i].read()
		l.Counts, l.InFlight, l.Rate = stats.Counts(t.Counts), t.InFlight, t.Rate
		p.Links[i] = l
	}
	return p
}

// History has the sessions that ended last.
type History struct {
	mu   sync.Mutex
	list []View
}

const mostHistory = 64

// Add notes a session that ends, as lost or closed. One without links has counted nothing.
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
	h.list = append(h.list, v)
}

// Besides gives those that are not among the given ones.
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

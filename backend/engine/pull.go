package engine

import (
	"gorail/backend/core"
	"gorail/backend/wire"
)

// mostPulled is how many requests for keys are under way before nobody waits for more of them: enough for the target to
// have work, few enough that what a transfer waits for, which is asked at once, is not far behind.
const mostPulled = 3

// want notes that a region's keys are missing. Under mu.
func (r *remote) want(g *region) {
	if !g.wanted {
		g.wanted = true
		r.wanted = append(r.wanted, g)
	}
}

// missing says that a region's keys should be asked for: nobody has, and the peer has not said that it has no such region.
func (g *region) missing() bool { return !g.keyed && !g.asked && !g.unknown && !g.closed.Load() }

// pull asks for keys that are missing, a frame's worth a request, in the order of loading. Under mu.
func (r *remote) pull() {
	for len(r.requests) < mostPulled && r.out != nil {
		var list []*region
		for len(r.wanted) > 0 && len(list) < wire.MaxRanges {
			g := r.wanted[0]
			r.wanted[0], r.wanted = nil, r.wanted[1:]
			g.wanted = false
			if g.missing() {
				list = append(list, g)
			}
		}
		if len(list) == 0 {
			return
		}
		r.ask(list)
	}
}

// pullFor asks for what a transfer waits for, before all else. Under mu.
func (r *remote) pullFor(t *transfer) {
	if r.out == nil {
		return
	}
	var list []*region
	for _, g := range t.remotes {
		if !g.missing() {
			continue
		}
		if list = append(list, g); len(list) == wire.MaxRanges {
			r.ask(list)
			list = nil
		}
	}
	if len(list) > 0 {
		r.ask(list)
	}
}

// ask sends a request. Under mu.
func (r *remote) ask(list []*region) {
	ranges := make([]wire.Range, len(list))
	for i, g := range list {
		g.asked = true
		ranges[i] = g.Range
	}
	id := r.e.ids.Add(1)
	r.requests[id] = list
	r.out.Keys(id, ranges)
}

// Keys are the target's answer.
func (h initiatorHandler) Keys(k wire.Keys) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready || !h.current() {
		return
	}
	list := r.requests[k.ID]
	delete(r.requests, k.ID)
	r.change()
	for i, g := range list {
		g.asked = false
		if i < len(k.Entries) && !g.closed.Load() {
			r.take(g, k.Entries[i])
		}
	}
	if len(r.requests) == 0 {
		r.early = nil
	}
	r.kick()
	r.pull()
}

// take enters a region's keys. Under mu.
func (r *remote) take(g *region, entry wire.KeyEntry) {
	if entry.Known && r.early[entry.Region] {
		r.want(g) // revoked while the answer was under way: ask again
		return
	}
	if g.keyed {
		r.takeMore(g, entry)
		return
	}
	g.why = r.refusal(g, entry)
	if g.unknown = g.why != ""; g.unknown {
		return
	}
	g.core.Set(g.Addr, g.Len, core.Slots(r.e.opt))
	g.rails.Store(0)
	for _, rk := range entry.Rails {
		if int(rk.Rail) < core.Slots(r.e.opt) {
			g.rails.Or(1 << rk.Rail)
			g.core.SetKey(int(rk.Rail), core.Key{Key: rk.Key, Base: rk.Base})
		}
	}
	if g.Len == 0 { // none has a key of it, and none needs one
		g.rails.Store(^uint64(0))
	}
	g.targetID = entry.Region
	r.byTarget[entry.Region] = g
	g.keyed = true
	g.core.SetLive(true)
}

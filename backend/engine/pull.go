package engine

import (
	"gorail/backend/core"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// mostPulled is how many requests for keys are under way before nobody waits for more of them: enough for the target to
// have work, few enough that what a transfer waits for, which is asked at once, is not far behind.
const mostPulled = 3

// want notes that a region's keys are missing. Under mu.
func (r *remote) want(g *region.Region) {
	if !g.Wanted {
		g.Wanted = true
		r.wanted = append(r.wanted, g)
	}
}

// missing says that a region's keys should be asked for: nobody has, and the peer has not said that it has no such region.
func missing(g *region.Region) bool { return !g.Keyed && !g.Asked && !g.Unknown && !g.Closed.Load() }

// pull asks for keys that are missing, a frame's worth a request, in the order of loading. Under mu.
func (r *remote) pull() {
	for len(r.requests) < mostPulled && r.out != nil {
		var list []*region.Region
		for len(r.wanted) > 0 && len(list) < wire.MaxRanges {
			g := r.wanted[0]
			r.wanted[0], r.wanted = nil, r.wanted[1:]
			g.Wanted = false
			if missing(g) {
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
	var list []*region.Region
	for _, g := range t.remotes {
		if !missing(g) {
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
func (r *remote) ask(list []*region.Region) {
	ranges := make([]wire.Range, len(list))
	for i, g := range list {
		g.Asked = true
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
		g.Asked = false
		if i < len(k.Entries) && !g.Closed.Load() {
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
func (r *remote) take(g *region.Region, entry wire.KeyEntry) {
	if entry.Known && r.early[entry.Region] {
		r.want(g) // revoked while the answer was under way: ask again
		return
	}
	if g.Keyed {
		r.takeMore(g, entry)
		return
	}
	g.Why = r.refusal(g, entry)
	if g.Unknown = g.Why != ""; g.Unknown {
		return
	}
	g.Core.Set(g.Addr, g.Len, core.Slots(r.e.opt.MaxRails))
	g.Rails.Store(0)
	for _, rk := range entry.Rails {
		if int(rk.Rail) < core.Slots(r.e.opt.MaxRails) {
			g.Rails.Or(1 << rk.Rail)
			g.Core.SetKey(int(rk.Rail), core.Key{Key: rk.Key, Base: rk.Base})
		}
	}
	if g.Len == 0 { // none has a key of it, and none needs one
		g.Rails.Store(^uint64(0))
	}
	g.TargetID = entry.Region
	r.byTarget[entry.Region] = g
	g.Keyed = true
	g.Core.SetLive(true)
}

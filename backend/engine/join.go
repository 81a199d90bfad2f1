package engine

import (
	"errors"
	"maps"
	"slices"

	"gorail/backend/core"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// UseRail brings up the links of the sessions that are there.
func (e *Engine) UseRail(r *rails.Rail) {
	for _, s := range e.sessions() {
		s.events.do(e, func() { s.startLinks(r) })
	}
	e.mu.RLock()
	targets := slices.Collect(maps.Values(e.targets))
	e.mu.RUnlock()
	for _, t := range targets {
		go t.wantStart(r) // not among the events, see onEvent
	}
}

// startLinks tries the links over a rail that have never had an endpoint on both sides.
func (r *remote) startLinks(rl *rails.Rail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.rail == rl {
			r.startLink(l)
		}
	}
}

// startLink opens our endpoint of a link that is not up yet, and asks the peer for its own, as a fence does. Under r.mu.
func (r *remote) startLink(l *link) {
	if r.state != ready || l.up || l.shared() {
		return
	}
	if l.phase == fencing {
		l.again = true
		return
	}
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		r.e.log.Debug("a rail is not there yet for a peer", "peer", r.name, "rail", l.rail.Name(), "err", err)
		return
	}
	l.ep, l.again = ep, false
	l.enter(fencing)
	r.out.Fence(r.e.ids.Add(1), uint8(l.num), l.epoch, ep.Addr())
}

// started has the peer's answer: the link begins with a probe. Under r.mu.
func (r *remote) started(l *link, err error) {
	if err == nil {
		r.change()
		err = r.e.attach(l, r.sess, l.peerID, core.Initiator, true)
	}
	if err == nil {
		l.late = true
		l.enter(probing)
		l.l.SetWeight(r.weight(l))
		return
	}
	r.e.log.Debug("a rail is not there yet at a peer", "peer", r.name, "rail", l.rail.Name(), "err", err)
	_ = r.e.quiesce(l) // it is in the log
	l.enter(resting)
	if l.up { // it was attached in part
		r.later(l, firstRest, "another try")
	} else if l.again { // the peer's rail came up while its answer was under way
		r.startLink(l)
	}
}

// askAgain asks for the keys of regions that the peer had registered before the rail of its that a link goes to was there. Under r.mu.
func (r *remote) askAgain(peerRail int) {
	var list []*region.Region
	for _, g := range r.regions {
		if g.Keyed && !g.Asked && g.Parts == nil && g.Mem == region.DRAM && g.Rails.Load()&(1<<peerRail) == 0 {
			if list = append(list, g); len(list) == wire.MaxRanges {
				r.ask(list)
				list = nil
			}
		}
	}
	if len(list) > 0 {
		r.ask(list)
	}
}

// takeMore adds keys of rails to a region that has some: what is posted names others. Under r.mu.
func (r *remote) takeMore(g *region.Region, entry wire.KeyEntry) {
	if !entry.Known || entry.Region != g.TargetID {
		return // it is being taken back
	}
	for _, rk := range entry.Rails {
		if bit := uint64(1) << rk.Rail; int(rk.Rail) < core.Slots(r.e.opt.MaxRails) && g.Rails.Load()&bit == 0 {
			g.Core.SetKey(int(rk.Rail), core.Key{Key: rk.Key, Base: rk.Base})
			g.Rails.Or(bit)
		}
	}
}

// wantStart asks the initiator for the links over a rail that has just come up.
func (t *target) wantStart(rl *rails.Rail) {
	if !t.e.enter() {
		return
	}
	defer t.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if !t.gone && !t.frozen && l.rail == rl && !l.up {
			t.in.WantFence(uint8(l.num), l.epoch)
		}
	}
}

// start opens our end of a link that has never been up, for an initiator whose endpoint is there. Under t.mu.
func (t *target) start(l *link, f wire.Fence) ([]byte, error) {
	_ = t.e.quiesce(l) // it is in the log
	if len(f.Addr) == 0 {
		return nil, errors.New("the peer has no endpoint for it")
	}
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	l.ep, l.epoch = ep, f.Epoch
	if err := t.e.reachFor(ep, f.Addr, t.from()); err != nil {
		return nil, err
	}
	l.enter(working)
	return ep.Addr(), t.e.attach(l, t.sess, l.peerID, core.Target, false)
}

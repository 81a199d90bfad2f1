package initiator

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/rails"
	"gorail/backend/region"
)

// startLinks starts the links over a rail that have never had an endpoint on both sides.
func (r *Session) startLinks(rl *rails.Rail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.Rail == rl {
			r.startLink(l)
		}
	}
}

// startLink opens our endpoint of a link that is not up yet. It requests the peer's endpoint with a FENCE. Under mu.
func (r *Session) startLink(l *link.Link) {
	if r.state != ready || l.Up || l.Shared() {
		return
	}
	if l.Phase == failover.Fencing {
		l.StartAgain = true
		return
	}
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		r.s.Log.Debug("cannot start a link yet: our endpoint did not open", "peer", r.name, "rail", l.Rail.Name(), "err", err)
		return
	}
	l.EP, l.StartAgain = ep, false
	l.Enter(failover.Fencing, time.Now())
	r.sendFence(l, ep.Addr())
}

// started handles the peer's answer: the link begins with a probe. Under mu.
func (r *Session) started(l *link.Link, err error) {
	if err == nil {
		r.change(func() {
			if err = r.s.Links.Attach(l, r.sess, core.Initiator, true); err == nil {
				l.CameUpLate = true
				l.Enter(failover.Probing, time.Now())
				l.Core.SetWeight(r.Weight(l))
			}
		})
	}
	if err == nil {
		return
	}
	r.s.Log.Debug("cannot start a link yet: the peer's endpoint cannot be reached", "peer", r.name, "rail", l.Rail.Name(), "err", err)
	_ = r.s.Links.Quiesce(l) // Quiesce logs the error
	r.change(func() { l.Enter(failover.BackingOff, time.Now()) })
	if l.Up { // Attach failed halfway
		r.fenceAfter(l, failover.FirstBackoff, "retry")
	} else if l.StartAgain { // the peer's rail came up before the answer arrived
		r.startLink(l)
	}
}

// askAgain requests the keys of regions that the peer registered before the peer's rail of a link was open. Under mu.
func (r *Session) askAgain(peerRail int) {
	r.askAll(slices.Collect(maps.Values(r.regions)), func(g *region.Region) bool {
		return g.Keyed && !g.Asked && g.Slices == nil && g.Mem == region.DRAM && g.Rails.Load()&(1<<peerRail) == 0
	})
}

// watch fences stuck links: see failover.Session.Watch. The sweeper calls it.
func (r *Session) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		return
	}
	r.failover.Watch(func(i int) failover.Count { return r.links[i].Count() }, func(i int, why string) {
		r.links[i].Stalled()
		r.fence(r.links[i], why)
	})
}

// deviceChanged fences the links over a device that went down, if other rails can do their work. It retries the links
// over a device that came up.
func (r *Session) deviceChanged(name string, up bool, addr netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up && addr.IsValid() && r.conn.out != nil {
		r.conn.out.Suspect(addr, why)
	}
	for _, l := range r.links {
		switch {
		case l.Rail.Device().Name != name:
		case !l.Up && up:
			r.startLink(l)
		case r.failover.DeviceChanged(&l.Link, up):
			r.fence(l, why)
		}
	}
}

package session

// Keys of more rails. A target may register memory on more rails while a session lasts, and says so in a Wider frame. An answer that is under way may
// be older than that, so its regions are asked for again. A target may say so at any time, and need not be honest: requests have a pace.

import (
	"time"

	"gorail/backend/region"
	"gorail/backend/wire"
)

// widerEvery is the time between two requests for keys of more rails. An honest target looks for more rails twice a second.
const widerEvery = 250 * time.Millisecond

// wider are rails of the peer whose keys some regions may lack. Under Initiator.mu.
type wider struct {
	rails uint64    // bit mask: not yet asked for
	at    time.Time // of the last request
	armed bool      // a timer asks
}

// Wider asks for the keys of regions that the peer has registered on more rails. Implements peer.InitiatorHandler.
func (c *conn) Wider(on []wire.Rail) {
	c.whenReady(func(r *Initiator) {
		mask := uint64(0)
		for _, rail := range on {
			if r.takesKey(int(rail.Number)) {
				mask |= 1 << rail.Number
			}
		}
		r.askWider(mask)
	})
}

// askWider asks for the keys of the peer's rails that regions lack, now or a moment after the request before. Under mu.
func (r *Initiator) askWider(on uint64) {
	w := &r.wider
	if w.rails |= on; w.rails == 0 || w.armed {
		return
	}
	if rest := time.Until(w.at.Add(widerEvery)); rest > 0 {
		w.armed = true
		r.s.Life.After(rest, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if w.armed = false; r.state == ready {
				r.askWider(0)
			}
		})
		return
	}
	on, w.rails, w.at = w.rails, 0, time.Now()
	var list []*region.Region
	for _, g := range r.regions {
		switch {
		case g.Slices != nil || g.Mem != region.DRAM || g.Closed.Load():
		case g.Asked: // the answer may be older
			g.More |= on
		case g.Keyed && g.Rails.Load()&on != on:
			list = append(list, g)
		}
	}
	r.askAll(list, func(g *region.Region) bool { return !g.Asked })
}

// askOlder asks once more for regions whose answers may be older than a Wider, unless they have what that was about. Under mu.
func (r *Initiator) askOlder(list []*region.Region) {
	r.askAll(list, func(g *region.Region) bool {
		on := g.More
		g.More = 0
		return g.Keyed && !g.Asked && !g.Closed.Load() && g.Rails.Load()&on != on
	})
}

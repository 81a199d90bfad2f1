package engine

import (
	"time"

	"gorail/backend/core"
	"gorail/backend/rlimit"
)

// probe tries a link that rests. Under r.mu.
func (r *remote) probe(l *link) {
	l.enter(probing)
	if err := l.rebind(core.Proof{}, true); err != nil {
		r.e.log.Warn("cannot probe a rail", "peer", r.name, "rail", l.rail.Name(), "err", rlimit.Advise(err))
		l.pause = max(l.pause, firstRest)
		r.later(l, l.pause, "another try")
	}
}

// cameUp: the link's probe is through. What waits for links that don't work is given to it, and what is under way may use it.
func (r *remote) cameUp(l *link, epoch uint64) {
	r.mu.Lock()
	if !r.owns(l) || l.phase != probing || epoch != uint64(l.epoch) || l.l.Stats().State != core.LinkProbing {
		r.mu.Unlock()
		return
	}
	r.change()
	l.enter(working)
	l.moved = time.Now()
	l.prove()
	if l.late {
		l.late = false
		r.askAgain(l.peer)
	}
	r.rehome()
	l.l.Up()
	for _, o := range r.links {
		if o.up && (o.phase == probing || o.phase == resting) {
			o.l.Yield(core.Proof{})
		}
	}
	r.kick()
	active := r.e.activeOf(r)
	r.announce()
	r.mu.Unlock()
	r.e.log.Info("rail in use", "peer", r.name, "rail", l.rail.Name(), "link", l.num, "epoch", epoch)
	for _, t := range active {
		t.mu.Lock()
		t.x.TakeTicket() // Join looks at what a post writes
		r.mu.RLock()
		if !t.freed() && r.state == ready && r.owns(l) && t.x.InFlight() && l.phase == working && l.up {
			r.e.core.Join(t.x, l.l)
		}
		r.mu.RUnlock()
		t.mu.Unlock()
	}
}

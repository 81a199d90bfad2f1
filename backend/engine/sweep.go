package engine

import (
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// active gives the transfers in flight that match.
func (e *Engine) active(match func(*transfer) bool) []*transfer {
	recs := e.xfers.CollectActive(func(r *xfer.Record[*transfer]) bool { return r.Value.x.Running() && match(r.Value) })
	list := make([]*transfer, len(recs))
	for i, r := range recs {
		list[i] = r.Value
	}
	return list
}

// activeOf gives those of one peer that the core has. Under its mu.
func (e *Engine) activeOf(r *remote) []*transfer {
	return e.active(func(t *transfer) bool { return t.remote == r && t.busy() })
}

// sweeper looks after deadlines: transfers without progress, aborted ones that do not drain.
type sweeper struct {
	e    *Engine
	quit chan struct{}
	done chan struct{}
}

func startSweeper(e *Engine) *sweeper {
	s := &sweeper{e, make(chan struct{}), make(chan struct{})}
	go s.run()
	return s
}

func (s *sweeper) stop() {
	close(s.quit)
	<-s.done
}

func (s *sweeper) run() {
	defer close(s.done)
	o := &s.e.opt
	tick := time.NewTicker(min(250*time.Millisecond, max(time.Millisecond, min(o.XferTimeout, o.CancelTimeout, o.RailTimeout)/4)))
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
			if s.e.xfers.ActiveLen() > 0 {
				s.sweep()
			}
			s.watch()
		}
	}
}

// watch looks at the links of every peer that has more than one.
func (s *sweeper) watch() {
	s.e.railSet.Warnings()
	for _, r := range s.e.sessions() {
		if (len(r.lanes) > 1 || r.revoking()) && !r.watched.Swap(true) {
			r.events.do(s.e, func() {
				defer r.watched.Store(false)
				r.settleRevokes() // of transfers whose data is there, and whose notification is not out
				if len(r.lanes) > 1 {
					r.watch(time.Now())
				}
			})
		}
	}
}

// sweep has every peer's transfers looked at, each peer's apart.
func (s *sweeper) sweep() {
	of := map[*remote][]*transfer{}
	for _, rec := range s.e.xfers.CollectActive(func(*xfer.Record[*transfer]) bool { return true }) {
		of[rec.Value.remote] = append(of[rec.Value.remote], rec.Value)
	}
	for r, list := range of {
		if r.swept.Swap(true) {
			continue // the look before is not over
		}
		r.events.do(s.e, func() {
			defer r.swept.Store(false)
			for _, t := range list {
				s.sweepOne(t)
			}
		})
	}
}

func (s *sweeper) sweepOne(t *transfer) {
	switch {
	case t.x.Running() || t.x.Unsettled():
		s.look(t)
	case t.zombie.Load():
		if s.e.reap(t) {
			t.remote.settleRevokes()
		}
	default:
		t.mu.Lock()
		if !t.freed() && !t.x.Running() {
			t.rest()
		}
		t.mu.Unlock()
	}
}

// rest takes a transfer that has ended off the active list, and its ticket with it: the next post enters it again. One that is
// posted again and again stays. Under t.mu.
func (t *transfer) rest() {
	t.sample()
	if t.x.HasTicket() && core.Now()-t.x.LastProgress() < t.e.opt.XferTimeout {
		return
	}
	if t.x.TakeTicket(); t.x.Running() {
		return // posted just now
	}
	t.e.xfers.Rest(t.rec)
	t.tell()
}

// slowMapping is how long a transfer waits for the peer's memory to be mapped here before it is staged: thousands of VMM handles take up to
// 10 ms each.
const slowMapping = 100 * time.Millisecond

// notMapped stops a transfer that waits for memory to be mapped: settle begins it anew, over rings. Under mu; false: it does not wait for that.
func (t *transfer) notMapped() bool {
	r := t.remote
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t.x.TakeTicket(); !t.attached(r) || !t.x.Running() || !t.x.Unposted() || !slices.ContainsFunc(r.links, (*link).mapping) {
		return false
	}
	t.opening = true
	t.e.core.Abort(t.x, int32(status.ErrNotSupported))
	return true
}

// mapping says that the link works and that its rail has memory of peers to map yet.
func (l *link) mapping() bool {
	m, ok := l.rail.Inner().(provider.Mapper)
	return ok && l.up && l.phase == working && m.Mapping()
}

// look checks the deadlines of one transfer in flight.
func (s *sweeper) look(t *transfer) {
	e := s.e
	now := time.Now()
	t.mu.Lock()
	if t.freed() || !t.x.Running() || t.run.Load() != nil { // a run looks after itself
		t.mu.Unlock()
		return
	}
	last := max(core.Now()-t.x.LastProgress(), 0)
	if since := now.Sub(t.posted); since < last {
		last = since
	}
	aborted, done, moving := t.aborted, t.x.Done(), t.x.InFlight()
	if t.bulk && t.inner == nil && aborted.IsZero() && last > slowMapping && t.notMapped() {
		t.mu.Unlock()
		return
	}
	if t.gpu && aborted.IsZero() && last > slowRail && t.offRails() {
		t.mu.Unlock()
		return
	}
	overdue := !aborted.IsZero() && moving && now.Sub(aborted) > e.opt.CancelTimeout
	if overdue {
		t.aborted = now
	}
	late := aborted.IsZero() && !t.taken.IsZero() && moving && now.Sub(t.taken) > e.opt.CancelTimeout
	if late {
		t.taken = now
	}
	t.mu.Unlock()
	switch {
	case late:
		t.fence("a transfer over memory that the peer has taken back did not drain within cancel_timeout")
	case !aborted.IsZero():
		if overdue {
			t.fence("an aborted transfer did not drain within cancel_timeout")
			t.remote.unanswered(now)
		}
	case last > e.opt.XferTimeout:
		why := fmt.Sprintf("no progress for %v (option xfer_timeout) to peer %q on rails %v, %d of %d bytes left",
			e.opt.XferTimeout, t.remote.name, t.remote.railsInUse(), t.bytes-min(done, t.bytes), t.bytes)
		e.log.Error("transfer timed out", "reason", why, "links", t.remote.linkTexts())
		t.abort(status.ErrBackend, why)
	}
}

func (r *remote) railsInUse() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.path()
}

package engine

import (
	"sync"
	"time"

	"gorail/backend/target"
)

func startSweeper(e *Engine) *sweeper {
	s := &sweeper{e, make(chan struct{}), make(chan struct{})}
	go s.run()
	return s
}

func (s *sweeper) stop() {
	close(s.quit)
	<-s.done
}

// run sweeps transfers, and looks for stuck links: more often while there are transfers, so that a rail that falls silent
// costs little more than rail_timeout.
func (s *sweeper) run() {
	defer close(s.done)
	o := &s.e.opt
	every := min(250*time.Millisecond, max(time.Millisecond, min(o.XferTimeout, o.CancelTimeout, o.RailTimeout)/4))
	look := min(every, max(time.Millisecond, o.RailTimeout/8))
	timer := time.NewTimer(every)
	defer timer.Stop()
	swept := time.Now()
	for {
		next := every
		if s.e.transfers.ActiveLen() > 0 {
			next = look
		}
		s.e.late.awaits(time.Now().Add(next))
		timer.Reset(next)
		select {
		case <-s.quit:
			return
		case now := <-timer.C:
			s.e.late.came(time.Now())
			s.e.initiators.Watch()
			if now.Sub(swept) < every {
				continue
			}
			swept = now
			if s.e.transfers.ActiveLen() > 0 {
				s.e.transfers.Sweep()
			}
			s.e.rails.Warnings()
		}
	}
}

// lateness notes how late a ticker was: a process that is stopped, or starves for processor time, shows it.
type lateness struct {
	mu     sync.Mutex
	due    time.Time        // of the next tick; zero: none is awaited
	turned time.Time        // when worst[0] began
	worst  [2]time.Duration // in the last latePeriod, which goes on; in the one before
}

// latePeriod is half of the longest time for which a late tick is remembered.
const latePeriod = 10 * time.Second

// awaits says when the next tick is due.
func (l *lateness) awaits(due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = due
}

// came notes a tick.
func (l *lateness) came(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.turned) >= latePeriod {
		l.worst[1], l.worst[0], l.turned = l.worst[0], 0, now
	}
	l.worst[0] = max(l.worst[0], now.Sub(l.due))
}

// most is how late a tick was at most, or is now.
func (l *lateness) most(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due.IsZero() {
		return 0
	}
	return max(l.worst[0], l.worst[1], now.Sub(l.due))
}

// vitals is what peers' snapshots say of this engine.
func (e *Engine) vitals() target.Vitals {
	return target.Vitals{Uptime: time.Since(e.started), Late: e.late.most(time.Now()), Transfers: e.transfers.Running()}
}

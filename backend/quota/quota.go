// Package quota bounds what peers may take: places for endpoints by source, turns and paces for what holds threads, lines in the log. It is pure.
package quota

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// mostWait is how long somebody waits for a turn at most, for a pace.
const mostWait = 500 * time.Millisecond

// Places counts the endpoints of peers' sessions, all and by where the peers are.
type Places struct {
	mu      sync.Mutex
	all     Usage
	sources map[netip.Addr]Usage
}

// Usage is how many endpoints there are, and how many descriptors these take.
type Usage struct{ Endpoints, Descriptors int }

func (u Usage) Plus(v Usage) Usage {
	return Usage{u.Endpoints + v.Endpoints, u.Descriptors + v.Descriptors}
}

// within says whether it stays within so many quarters of a limit.
func (u Usage) within(most Usage, quarters int) bool {
	return 4*u.Endpoints <= quarters*most.Endpoints && 4*u.Descriptors <= quarters*most.Descriptors
}

// Take counts endpoints of a source; false: they would be too many, of that source or of all.
func (r *Places) Take(source netip.Addr, more, most Usage) (same, fits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, from := r.all.Plus(more), r.sources[source].Plus(more)
	if !from.within(most, 3) || !all.within(most, 4) {
		return !from.within(most, 3), false
	}
	if r.sources == nil {
		r.sources = map[netip.Addr]Usage{}
	}
	r.all, r.sources[source] = all, from
	return false, true
}

// Used is what is taken now, by all.
func (r *Places) Used() Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// Give takes back what take has counted.
func (r *Places) Give(source netip.Addr, less Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	less = Usage{-less.Endpoints, -less.Descriptors}
	r.all = r.all.Plus(less)
	if r.sources[source] = r.sources[source].Plus(less); r.sources[source] == (Usage{}) {
		delete(r.sources, source)
	}
}

// Pace bounds the share of a core that something takes: burst at once, then one part of so many.
type Pace struct {
	burst time.Duration
	parts int

	mu   sync.Mutex
	debt time.Duration
	at   time.Time
}

// drain is called with mu held.
func (p *Pace) drain(now time.Time) {
	if now.After(p.at) { // else another was quicker
		p.debt = max(0, p.debt-now.Sub(p.at)/time.Duration(p.parts))
		p.at = now
	}
}

// NewPace lets burst at once, then one part of so many.
func NewPace(burst time.Duration, parts int) *Pace { return &Pace{burst: burst, parts: parts} }

// due is how long whoever wants to spend more must wait.
func (p *Pace) due(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(now)
	return max(0, p.debt-p.burst) * time.Duration(p.parts)
}

func (p *Pace) Spend(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(time.Now())
	p.debt = min(p.debt+d, p.burst+mostWait/time.Duration(p.parts)) // who has waited long for something else is no reason to keep others out
}

// Wait waits until more may be spent; false: done came before.
func (p *Pace) Wait(done <-chan struct{}) bool {
	d := p.due(time.Now())
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// Turns lets few of many do at a time what holds threads and locks, as much of the time as paces allow.
type Turns struct {
	places chan struct{}
	pace   *Pace // of all together, or nil
}

func NewTurns(places int, all *Pace) *Turns {
	return &Turns{places: make(chan struct{}, places), pace: all}
}

// Take waits for a turn, which ends with end; false: the session has ended before. own is the session's own pace, or nil.
func (s *Turns) Take(done <-chan struct{}, own *Pace) (end func(), ok bool) {
	if own != nil && !own.Wait(done) || s.pace != nil && !s.pace.Wait(done) {
		return nil, false
	}
	select {
	case s.places <- struct{}{}:
	case <-done:
		return nil, false
	}
	start := time.Now()
	return func() {
		took := time.Since(start)
		<-s.places
		if s.pace != nil {
			s.pace.Spend(took)
		}
		if own != nil {
			own.Spend(took)
		}
	}, true
}

// Lines lets fewAtOnce log lines through, and then one in a second: peers must not fill our log. The zero value is ready; safe for concurrent use.
type Lines struct {
	mu    sync.Mutex
	limit *rate.Limiter
	lost  int // not written since the last
}

const fewAtOnce = 20

// Next says whether a line may be written, and how many were not since the last.
func (f *Lines) Next(now time.Time) (lost int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limit == nil {
		f.limit = rate.NewLimiter(1, fewAtOnce)
	}
	if !f.limit.AllowN(now, 1) {
		f.lost++
		return 0, false
	}
	lost, f.lost = f.lost, 0
	return lost, true
}

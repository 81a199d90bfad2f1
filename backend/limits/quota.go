package limits

// Quotas limit what peers may take: sessions, endpoints and memory by source and identity, turns and paces for work that holds threads,
// and lines in the log. It is pure.

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// mostWait bounds the wait for a pace.
const mostWait = 500 * time.Millisecond

// Pace limits the share of a core that some work takes: burst at once, then 1/parts of a core.
type Pace struct {
	burst time.Duration
	parts int

	mu   sync.Mutex
	debt time.Duration
	at   time.Time
}

// drain lowers the debt by the time that has passed. Under mu.
func (p *Pace) drain(now time.Time) {
	if now.After(p.at) { // else another call was faster
		p.debt = max(0, p.debt-now.Sub(p.at)/time.Duration(p.parts))
		p.at = now
	}
}

// NewPace allows burst at once, then 1/parts of a core.
func NewPace(burst time.Duration, parts int) *Pace { return &Pace{burst: burst, parts: parts} }

// due is the wait before more work may begin.
func (p *Pace) due(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(now)
	return max(0, p.debt-p.burst) * time.Duration(p.parts)
}

// Spend adds the time that work took.
func (p *Pace) Spend(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(time.Now())
	p.debt = min(p.debt+d, p.burst+mostWait/time.Duration(p.parts)) // bounded: a caller that waited long for something else must not lock others out
}

// Wait waits until more work may begin. false: done was closed before.
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

// Turns limits how many callers work at a time, and their share of time by paces. The work holds threads and locks.
type Turns struct {
	places chan struct{}
	pace   *Pace  // of all callers together, or nil
	waited func() // called for a caller that has to wait
}

// NewTurns makes Turns with this number of places. all may be nil. waited is called, in any goroutine, for each caller
// that has to wait.
func NewTurns(places int, all *Pace, waited func()) *Turns {
	return &Turns{places: make(chan struct{}, places), pace: all, waited: waited}
}

// Take waits for a turn. The caller ends the turn with end. false: the session has ended before. own is the session's
// own pace, or nil.
func (s *Turns) Take(done <-chan struct{}, own *Pace) (end func(), ok bool) {
	if now := time.Now(); own != nil && own.due(now) > 0 || s.pace != nil && s.pace.due(now) > 0 || len(s.places) == cap(s.places) {
		s.waited()
	}
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

// Lines limits log lines that peers cause: a burst, then one line a second. The zero value is ready; safe for concurrent use.
type Lines struct {
	Burst int // 0: burstLines. Set before the first use

	mu    sync.Mutex
	limit *rate.Limiter
	lost  int // lines not written since the last written one
}

const burstLines = 20

// Next returns ok if a line may be written, and how many lines were not written since the last one.
func (f *Lines) Next(now time.Time) (lost int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.limit == nil {
		f.limit = rate.NewLimiter(1, cmp.Or(f.Burst, burstLines))
	}
	if !f.limit.AllowN(now, 1) {
		f.lost++
		return 0, false
	}
	lost, f.lost = f.lost, 0
	return lost, true
}

// Warn logs a warning if a line may be written. written is false if it may not.
func (f *Lines) Warn(log *slog.Logger, now time.Time, text string, args ...any) (written bool) {
	lost, ok := f.Next(now)
	if !ok {
		return false
	}
	if lost > 0 {
		args = append(args, "lines_left_out", lost)
	}
	log.Warn(text, args...) //limit:log_lines
	return true
}

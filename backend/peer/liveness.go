package peer

import (
	"sync"
	"time"
)

// lookTime is for a last look into the socket before a peer is blamed: a read with a deadline that has passed reads nothing.
const lookTime = 10 * time.Millisecond

// liveness decides when a silent peer is lost. It is told the time, so it needs no clock.
//
// The own process may have been stopped, or starved of CPU, while the peer's frames lie in the socket. Then timers fire
// late; each late one gives the peer half a timeout from there.
type liveness struct {
	timeout time.Duration // constant

	mu     sync.Mutex
	heard  time.Time // when something came last
	grace  time.Time // not lost before this
	looked bool      // the last look since heard is being taken or was
}

func newLiveness(timeout time.Duration, now time.Time) *liveness {
	return &liveness{timeout: timeout, heard: now}
}

// hear notes that something came.
func (l *liveness) hear(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard, l.looked = now, false
}

// lastHeard is the time of the last hear.
func (l *liveness) lastHeard() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// deadline is when to ask expired.
func (l *liveness) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due()
}

// fired notes when a timer fired that was due at due: a late one says that we were stopped.
func (l *liveness) fired(due, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late(due, now)
}

// expired is asked when a read has reached the deadline: true once the peer is lost.
func (l *liveness) expired(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := l.due()
	if now.Before(due) || l.late(due, now) {
		return false
	}
	if !l.looked {
		l.looked, l.grace = true, now.Add(min(lookTime, l.timeout/16))
		return false
	}
	return true
}

func (l *liveness) due() time.Time {
	due := l.heard.Add(l.timeout)
	if l.grace.After(due) {
		return l.grace
	}
	return due
}

// late is called with mu held.
func (l *liveness) late(due, now time.Time) bool {
	if now.Sub(due) <= l.timeout/8 {
		return false
	}
	if grace := now.Add(l.timeout / 2); grace.After(l.grace) {
		l.grace = grace
	}
	return true
}

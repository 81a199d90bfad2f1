package peer

import (
	"sync"
	"time"
)

// lookTime is for a last look into the socket before a peer is blamed: a read with a deadline that has passed reads nothing.
const lookTime = 10 * time.Millisecond

// liveness decides when a silent peer is lost. It is told the time, so it needs no clock.
//
// The own process may have been stopped, or starved of CPU, while the peer's frames lie in the socket or while the peer
// was stopped with us. Then a timer fires late: so a read waits for a quarter of the timeout at most, and when that takes
// much longer, the peer has half a timeout from there.
type liveness struct {
	timeout time.Duration // constant
	beat    time.Duration // constant; Config.heartbeat

	mu     sync.Mutex
	heard  time.Time // when something came last
	armed  time.Time // the deadline given last
	grace  time.Time // not lost before this
	awake  time.Time // silence makes uneasy from here on: we were stopped before
	back   time.Time // when a peer that hung up must be back; zero when none did
	looked bool      // the last look since heard was taken
}

func newLiveness(timeout, beat time.Duration, now time.Time) *liveness {
	return &liveness{timeout: timeout, beat: beat, heard: now}
}

// hear notes that something came.
func (l *liveness) hear(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard, l.looked, l.back = now, false, time.Time{}
}

// hurry says that the peer hung up: it is lost if it is not back by then.
func (l *liveness) hurry(back time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back, l.looked = back, false
}

// lastHeard is the time of the last hear.
func (l *liveness) lastHeard() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// silence is how long nothing was heard while we could have.
func (l *liveness) silence(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(later(l.heard, l.awake))
}

// arm gives the deadline of the next read; when it passes, expired must be asked.
func (l *liveness) arm(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = earlier(l.due(), now.Add(l.beat/4))
	if w := l.worry(); now.Before(w) {
		l.armed = earlier(l.armed, w)
	}
	return l.armed
}

// expired says whether the peer is lost, now that a read has reached its deadline.
func (l *liveness) expired(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case now.Sub(l.armed) > l.beat/8:
		l.grace, l.awake, l.looked = now.Add(l.timeout/2), now, false
		return false
	case now.Before(l.due()):
		return false
	case !l.looked:
		l.looked, l.grace = true, now.Add(min(lookTime, l.beat/16))
		return false
	}
	return true
}

// spare lets a silent peer live that shows other signs of life; expired is asked again soon.
func (l *liveness) spare(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grace, l.looked = now.Add(l.beat/4), false
}

// uneasy says that the peer is silent for so long that another path is worth a try. An answer to a ping, which goes out after
// a quarter of the timeout, would have come.
func (l *liveness) uneasy(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !now.Before(l.worry())
}

// worry is called with mu held.
func (l *liveness) worry() time.Time { return later(l.heard, l.awake).Add(l.beat / 3) }

// due is called with mu held.
func (l *liveness) due() time.Time {
	if l.back.IsZero() {
		return later(l.heard.Add(l.timeout), l.grace)
	}
	return later(l.back, l.grace)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Package liveness knows the signs of life of a peer: what was heard of it and when, its process where it is visible (pidfd), and the
// acknowledgements of its kernel (TCP_INFO). It decides nothing of a session. A Monitor is told the time, so tests need no clock.
package liveness

import (
	"sync"
	"time"
)

// lookTime is for a last look into the socket before a peer is blamed: a read with a deadline that has passed reads nothing.
const lookTime = 10 * time.Millisecond

// Monitor decides when a silent peer is lost. Safe for concurrent use.
//
// The own process may have been stopped, or starved of CPU, while the peer's frames lie in the socket or while the peer
// was stopped with us. Then a timer fires late: so a read waits for a quarter of the timeout at most, and when that takes
// much longer, the peer has half a timeout from there.
type Monitor struct {
	timeout time.Duration // constant
	beat    time.Duration // constant: what pings and the search for other paths are timed by

	mu     sync.Mutex
	heard  time.Time // when something came last
	armed  time.Time // the deadline given last
	grace  time.Time // not lost before this
	awake  time.Time // Silence makes uneasy from here on: we were stopped before
	back   time.Time // when a peer that hung up must be back; zero when none did
	looked bool      // the last look since heard was taken
}

// New makes a monitor of a peer that was just heard.
func New(timeout, beat time.Duration, now time.Time) *Monitor {
	return &Monitor{timeout: timeout, beat: beat, heard: now}
}

// Hear notes that something came.
func (m *Monitor) Hear(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard, m.looked, m.back = now, false, time.Time{}
}

// Hurry says that the peer hung up: it is lost if it is not back by then.
func (m *Monitor) Hurry(back time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.back, m.looked = back, false
}

// LastHeard is the time of the last Hear.
func (m *Monitor) LastHeard() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard
}

// Silence is how long nothing was heard while we could have.
func (m *Monitor) Silence(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(later(m.heard, m.awake))
}

// Arm gives the deadline of the next read; when it passes, Expired must be asked.
func (m *Monitor) Arm(now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = earlier(m.due(), now.Add(m.beat/4))
	if w := m.worry(); now.Before(w) {
		m.armed = earlier(m.armed, w)
	}
	return m.armed
}

// Expired says whether the peer is lost, now that a read has reached its deadline.
func (m *Monitor) Expired(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case now.Sub(m.armed) > m.beat/8:
		m.grace, m.awake, m.looked = now.Add(m.timeout/2), now, false
		return false
	case now.Before(m.due()):
		return false
	case !m.looked:
		m.looked, m.grace = true, now.Add(min(lookTime, m.beat/16))
		return false
	}
	return true
}

// Spare lets a silent peer live that shows other signs of life; Expired is asked again soon.
func (m *Monitor) Spare(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grace, m.looked = now.Add(m.beat/4), false
}

// Uneasy says that the peer is silent for so long that another path is worth a try. An answer to a ping, which goes out after
// a quarter of the timeout, would have come.
func (m *Monitor) Uneasy(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !now.Before(m.worry())
}

// PingDue is when the next ping is due: nothing sent for a quarter of beat, or nothing heard and no ping sent.
func (m *Monitor) PingDue(sent, pinged time.Time) time.Time {
	return earlier(sent, later(pinged, m.LastHeard())).Add(m.beat / 4)
}

// worry is called with mu held.
func (m *Monitor) worry() time.Time { return later(m.heard, m.awake).Add(m.beat / 3) }

// due is called with mu held.
func (m *Monitor) due() time.Time {
	if m.back.IsZero() {
		return later(m.heard.Add(m.timeout), m.grace)
	}
	return later(m.back, m.grace)
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

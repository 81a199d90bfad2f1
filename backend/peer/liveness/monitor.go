// Package liveness knows the signs of life of a peer: what was heard of it and when, its process where it is visible (pidfd), and the
// acknowledgements of its kernel (TCP_INFO). It decides nothing of a session. A Monitor is told the time, so tests need no clock.
package liveness

import (
	"sync"
	"time"
)

// lookTime is for a last look into the socket before a peer is blamed: a read with a deadline that has passed reads nothing.
const lookTime = 10 * time.Millisecond

// A peer that hung up has little time, so a short stop of ours matters: it is waited for in steps of backStep, and what a timer is late
// is not counted, if it is more than backLate.
const (
	backStep = 100 * time.Millisecond
	backLate = 20 * time.Millisecond
)

// Monitor decides when a silent peer is lost. Safe for concurrent use.
//
// The own process may have been stopped, or starved of CPU, while the peer's frames lie in the socket or while the peer
// was stopped with us. Then a timer fires late: so a read waits for a quarter of the timeout at most, and when that takes
// much longer, the peer has half a timeout from there. One that hung up has again all of the time that Hurry gave it.
type Monitor struct {
	timeout time.Duration // constant
	beat    time.Duration // constant: what pings and the search for other paths are timed by

	mu     sync.Mutex
	heard  time.Time     // when something came last
	armed  time.Time     // the deadline given last
	grace  time.Time     // not lost before this
	awake  time.Time     // Silence makes uneasy from here on: we were stopped before
	back   time.Time     // when a peer that hung up must be back; zero when none did
	hurry  time.Duration // what it was given for that
	looked bool          // the last look since heard was taken
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

// Hurry says that the peer hung up: it is lost if it is not back within that time. Time in which we do not run is not counted.
func (m *Monitor) Hurry(now time.Time, within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.back, m.hurry, m.looked = now.Add(within), within, false
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
	step := m.beat / 4
	if now.Before(m.back) {
		step = min(step, backStep)
	}
	m.armed = earlier(m.due(), now.Add(step))
	if w := m.worry(); now.Before(w) {
		m.armed = earlier(m.armed, w)
	}
	if !m.back.IsZero() {
		m.armed = later(m.armed, now) // no timer is late that was given no time
	}
	return m.armed
}

// Expired says whether the peer is lost, now that a read has reached its deadline.
func (m *Monitor) Expired(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	late := now.Sub(m.armed)
	stopped := late > m.beat/8
	if stopped {
		m.awake, m.looked = now, false
	}
	m.armed = later(m.armed, now) // so that it is late once
	switch {
	case stopped && m.back.IsZero():
		m.grace = now.Add(m.timeout / 2)
		return false
	case stopped:
		m.back = now.Add(m.hurry)
	case !m.back.IsZero() && late > backLate:
		m.back = m.back.Add(late)
	}
	switch {
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

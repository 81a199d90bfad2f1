package peer

import (
	"sync"
	"time"
)

// lastReadTime is for a last read before a peer is declared lost: a read whose deadline has passed reads nothing.
const lastReadTime = 10 * time.Millisecond

// A peer that hung up has little time to resume, so even a short stop of our own process matters. The monitor waits
// in steps of resumeStep. A timer that is late by more than lateTolerance extends the peer's time by its lateness.
const (
	resumeStep    = 100 * time.Millisecond
	lateTolerance = 20 * time.Millisecond
)

// A session is quiet when nothing was outstanding for calmAfter beats, and the peer has answered all pings. A quiet peer whose process we watch
// needs no ping. Others get one in a quarter of the timeout, rareMost at most: so a dead one is still noticed within the timeout, and
// firewalls keep the connection. 1,000 idle peers took 17 % of a core with a ping in 1.25 s each.
const (
	calmAfter = 2
	rareMost  = 15 * time.Second
	never     = time.Hour
)

// livenessMonitor decides when a silent peer is lost. It is safe for concurrent use.
//
// Our own process may have been stopped, or starved of CPU time, while the peer's frames waited in the socket. The
// peer may have been stopped with us. In both cases a timer fires late. So a read waits at most a quarter of the beat.
// If that takes much longer, the peer gets half a timeout from then on. A peer that hung up gets all of the time of
// HungUp again.
//
// Work and Pinged return true when they end the quiet: the caller must then arm the read in progress again.
type livenessMonitor struct {
	timeout time.Duration // constant
	beat    time.Duration // constant: base of the intervals of pings and of reconnects over other paths

	mu           sync.Mutex
	heard        time.Time     // time of the last data
	armed        time.Time     // the last deadline
	grace        time.Time     // the peer is not lost before this time
	awake        time.Time     // silence counts from here: our process was stopped before
	resumeBy     time.Time     // when a peer that hung up must have resumed; zero: no peer hung up
	resumeWithin time.Duration // the time that the peer got for that
	lastReadDone bool          // the last read since heard has been granted
	sought       time.Time     // the last time that SeekAnyway was true
	worked       time.Time     // when something was outstanding last
	asked        time.Time     // when the first ping since heard was sent; zero: none
	apart        bool          // there is no connection
	watched      bool          // the end of the peer's process will end the session
}

// newMonitor makes a monitor of a peer that was heard at the time now.
func newMonitor(timeout, beat time.Duration, now time.Time) *livenessMonitor {
	return &livenessMonitor{timeout: timeout, beat: beat, heard: now, worked: now}
}

// Hear records that data came.
func (m *livenessMonitor) Hear(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard, m.lastReadDone, m.resumeBy, m.asked, m.apart = now, false, time.Time{}, time.Time{}, false
}

// Watched records that the peer's process is on this host, and that its end will end the session.
func (m *livenessMonitor) Watched() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = true
}

// Apart records that there is no connection, until Hear.
func (m *livenessMonitor) Apart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apart = true
}

// Work records that something is outstanding: a frame is to be acknowledged, or a transfer runs.
func (m *livenessMonitor) Work(now time.Time) (roused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	roused = m.rouse(now)
	m.worked = now
	return roused
}

// Pinged records that a ping was sent, or is about to be.
func (m *livenessMonitor) Pinged(now time.Time) (roused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	roused = m.rouse(now)
	m.ask(now)
	return roused
}

// ask needs mu.
func (m *livenessMonitor) ask(now time.Time) {
	if m.asked.IsZero() {
		m.asked = now
	}
}

// Unanswered returns for how long a ping has had no answer, nor anything else come; 0: none waits.
func (m *livenessMonitor) Unanswered(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked.IsZero() {
		return 0
	}
	return now.Sub(m.asked)
}

// TakeAsk reports whether to ask the peer now, because something of it does not come: it was not heard for a fiftieth of the beat, or a fifth of that if early
// allows, and no ping is without its answer. The ping counts as sent, as by Pinged.
func (m *livenessMonitor) TakeAsk(now time.Time, early func() bool) (ask, roused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	unheard := now.Sub(m.heard)
	if !m.asked.IsZero() || m.apart || unheard < m.beat/250 || unheard < m.beat/50 && !early() {
		return false, false
	}
	roused = m.rouse(now)
	m.ask(now)
	return true, roused
}

// TakePing reports whether a ping of a quiet peer is due, because somebody wants to know whether it lives.
// A due one counts as sent, as by Pinged.
func (m *livenessMonitor) TakePing(now time.Time) (due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.quiet(now) || now.Sub(m.heard) < m.beat/4 {
		return false
	}
	m.ask(now)
	m.awaken(now)
	return true
}

// rouse needs mu.
func (m *livenessMonitor) rouse(now time.Time) bool {
	if !m.quiet(now) {
		return false
	}
	m.awaken(now)
	return true
}

// awaken needs mu. Nobody expected to hear the peer before.
func (m *livenessMonitor) awaken(now time.Time) {
	m.awake, m.lastReadDone = now, false
	if m.watched {
		m.grace = now.Add(m.timeout)
	}
}

// quiet needs mu.
func (m *livenessMonitor) quiet(now time.Time) bool {
	return m.asked.IsZero() && !m.apart && m.resumeBy.IsZero() && now.Sub(m.worked) >= calmAfter*m.beat
}

// step is the longest time until the next ping, or the end of a read. It needs mu.
func (m *livenessMonitor) step(now time.Time) time.Duration {
	switch {
	case !m.quiet(now):
		return m.beat / 4
	case m.watched:
		return never
	}
	return max(m.beat/4, min(m.timeout/4, rareMost))
}

// HungUp records that the peer hung up. The peer is lost unless it resumes within the given time. Time in which our
// process does not run is not counted.
func (m *livenessMonitor) HungUp(now time.Time, within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resumeBy, m.resumeWithin, m.lastReadDone = now.Add(within), within, false
}

// LastHeard returns the time of the last Hear.
func (m *livenessMonitor) LastHeard() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard
}

// Silence returns how long we could have heard the peer and did not; 0 for a quiet peer.
func (m *livenessMonitor) Silence(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.quiet(now) {
		return 0
	}
	return now.Sub(later(m.heard, m.awake))
}

// Arm returns the deadline of the next read. When the deadline has passed, the caller must call Expired.
func (m *livenessMonitor) Arm(now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.step(now)
	if now.Before(m.resumeBy) {
		step = min(step, resumeStep)
	}
	m.armed = now.Add(step)
	if step < never {
		m.armed = earlier(m.armed, m.due())
	}
	if w := m.reconnectAt(); now.Before(w) && !m.quiet(now) {
		m.armed = earlier(m.armed, w)
	}
	if !m.resumeBy.IsZero() {
		m.armed = later(m.armed, now) // a timer that had no time to run is not late
	}
	return m.armed
}

// Expired reports whether the peer is lost. The caller's read has reached its deadline.
func (m *livenessMonitor) Expired(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	late := now.Sub(m.armed)
	stopped := late > m.beat/8
	if stopped {
		m.awake, m.lastReadDone = now, false
	}
	m.armed = later(m.armed, now) // counts the lateness once
	switch {
	case stopped && m.resumeBy.IsZero():
		m.grace = now.Add(m.timeout / 2)
		return false
	case stopped:
		m.resumeBy = now.Add(m.resumeWithin)
	case !m.resumeBy.IsZero() && late > lateTolerance:
		m.resumeBy = m.resumeBy.Add(late)
	}
	switch {
	case now.Before(m.due()):
		return false
	case !m.lastReadDone:
		m.lastReadDone, m.grace = true, now.Add(min(lastReadTime, m.beat/16))
		return false
	}
	return true
}

// Extend gives a silent peer with other signs of life a quarter of the beat more. Expired decides again afterwards.
func (m *livenessMonitor) Extend(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grace, m.lastReadDone = now.Add(m.beat/4), false
}

// ShouldReconnect reports that the peer has been silent for a third of the beat, so another path is worth a try. A
// ping goes out after a quarter of the beat, and its answer should have come.
func (m *livenessMonitor) ShouldReconnect(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.quiet(now) && !now.Before(m.reconnectAt())
}

// LongSilence reports that the peer has been silent for twice that time, or a third of peer_timeout if that is less: two thirds are left for other paths.
func (m *livenessMonitor) LongSilence(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !now.Before(later(m.heard, m.awake).Add(min(2*m.beat, m.timeout) / 3))
}

// SeekAnyway reports that the peer has been silent for half of peer_timeout, or a beat if that is longer, but two thirds of peer_timeout at most, and takes that: it is true once in such a time. Of a
// thousand sessions behind one path that has broken, each finds another one within peer_timeout.
func (m *livenessMonitor) SeekAnyway(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(later(later(m.heard, m.awake), m.sought).Add(min(max(m.beat, m.timeout/2), 2*m.timeout/3))) {
		return false
	}
	m.sought = now
	return true
}

// PingDue returns when the next ping is due: nothing was sent for a quarter of the beat, or nothing was heard and no
// ping was sent for that time. A quiet peer's ping is due later.
func (m *livenessMonitor) PingDue(now, sent, pinged time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := m.step(now)
	if step == never {
		return now.Add(never)
	}
	return earlier(sent, later(pinged, m.heard)).Add(step)
}

// reconnectAt needs mu.
func (m *livenessMonitor) reconnectAt() time.Time { return later(m.heard, m.awake).Add(m.beat / 3) }

// due needs mu.
func (m *livenessMonitor) due() time.Time {
	if m.resumeBy.IsZero() {
		return later(m.heard.Add(m.timeout), m.grace)
	}
	return later(m.resumeBy, m.grace)
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

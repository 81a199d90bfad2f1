package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runUntilLost runs m from now on in steps, as a reader does. Each timer fires late by late. It returns the time of
// the loss.
func runUntilLost(m *livenessMonitor, now time.Time, late time.Duration, until time.Time) (time.Time, bool) {
	for now.Before(until) {
		now = m.Arm(now).Add(late)
		if m.Expired(now) {
			return now, true
		}
	}
	return now, false
}

func TestMonitor(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = 4 * time.Second
	t.Run("silence", func(t *testing.T) {
		at, lost := runUntilLost(newMonitor(timeout, timeout, t0), t0, 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, timeout+lastReadTime, at.Sub(t0), "with a last read")
	})
	t.Run("slightly late timers", func(t *testing.T) {
		at, lost := runUntilLost(newMonitor(timeout, timeout, t0), t0, time.Millisecond, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Less(t, at.Sub(t0), timeout+50*time.Millisecond)
	})
	t.Run("heard", func(t *testing.T) {
		m := newMonitor(timeout, timeout, t0)
		m.Hear(t0.Add(3 * time.Second))
		at, lost := runUntilLost(m, t0.Add(3*time.Second), 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, 3*time.Second+timeout+lastReadTime, at.Sub(t0))
	})
	for _, stopped := range []time.Duration{2 * time.Second, 3900 * time.Millisecond, 4100 * time.Millisecond, time.Minute} {
		t.Run("stopped for "+stopped.String(), func(t *testing.T) {
			m := newMonitor(timeout, timeout, t0)
			m.Arm(t0)
			back := t0.Add(stopped)
			require.False(t, m.Expired(back), "the peer gets more time")
			at, lost := runUntilLost(m, back, 0, t0.Add(time.Hour))
			require.True(t, lost)
			assert.GreaterOrEqual(t, at.Sub(back), timeout/2, "measured from the end of the stop")
			assert.LessOrEqual(t, at.Sub(back), timeout)
		})
	}
}

func TestShouldReconnect(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = 3 * time.Second
	t.Run("silence", func(t *testing.T) {
		m, now := newMonitor(timeout, timeout, t0), t0
		for !m.ShouldReconnect(now) {
			require.False(t, m.Expired(now))
			now = m.Arm(now)
		}
		assert.Equal(t, timeout/3, now.Sub(t0))
		m.Hear(now)
		assert.False(t, m.ShouldReconnect(now))
	})
	t.Run("stopped", func(t *testing.T) {
		m := newMonitor(timeout, timeout, t0)
		m.Arm(t0)
		back := t0.Add(2 * time.Second)
		assert.False(t, m.Expired(back))
		assert.False(t, m.ShouldReconnect(back), "our process was stopped")
		assert.True(t, m.ShouldReconnect(back.Add(timeout/3)))
	})
}

func TestHungUp(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = time.Minute
	m := newMonitor(timeout, timeout, t0)
	m.HungUp(t0, time.Second)
	at, lost := runUntilLost(m, t0, 0, t0.Add(time.Hour))
	require.True(t, lost)
	assert.Equal(t, time.Second+lastReadTime, at.Sub(t0))
	m = newMonitor(timeout, timeout, t0)
	m.HungUp(t0, time.Second)
	m.Hear(t0)
	at, lost = runUntilLost(m, t0, 0, t0.Add(time.Hour))
	require.True(t, lost)
	assert.Equal(t, timeout+lastReadTime, at.Sub(t0), "the peer is back")
}

// While a peer that hung up may come back, only time in which our process runs counts.
func TestHungUpWhileStopped(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout, beat, grace = time.Minute, 5 * time.Second, 1200 * time.Millisecond
	hungUp := func() *livenessMonitor {
		m := newMonitor(timeout, beat, t0)
		m.HungUp(t0, grace)
		m.Arm(t0)
		return m
	}
	t.Run("stopped", func(t *testing.T) {
		m, wake := hungUp(), t0.Add(1450*time.Millisecond)
		require.False(t, m.Expired(wake), "the peer may have connected meanwhile")
		at, lost := runUntilLost(m, wake, 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, grace+lastReadTime, at.Sub(wake), "and no longer")
	})
	t.Run("stopped at the last moment", func(t *testing.T) {
		m, now := hungUp(), t0
		for now.Before(t0.Add(grace)) {
			now = m.Arm(now)
			require.False(t, m.Expired(now))
		}
		m.Arm(now) // the last read
		wake := now.Add(time.Minute)
		require.False(t, m.Expired(wake))
		at, lost := runUntilLost(m, wake, 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, grace+lastReadTime, at.Sub(wake))
	})
	t.Run("starved", func(t *testing.T) {
		const late = 300 * time.Millisecond // for every 100 ms
		at, lost := runUntilLost(hungUp(), t0, late, t0.Add(time.Hour))
		require.True(t, lost)
		assert.GreaterOrEqual(t, at.Sub(t0), 4*grace, "the process ran for a quarter of it")
		assert.Less(t, at.Sub(t0), 5*grace)
	})
	t.Run("slightly late timers", func(t *testing.T) {
		at, lost := runUntilLost(hungUp(), t0, time.Millisecond, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Less(t, at.Sub(t0), grace+50*time.Millisecond)
	})
	t.Run("time was over before anybody waited", func(t *testing.T) {
		m := newMonitor(timeout, beat, t0)
		m.HungUp(t0, grace)
		now := t0.Add(2 * time.Second)
		at, lost := runUntilLost(m, now, 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, lastReadTime, at.Sub(now), "our process was not stopped")
	})
}

func TestPingDue(t *testing.T) {
	t0 := time.Unix(1000, 0)
	m := newMonitor(time.Minute, 4*time.Second, t0)
	assert.Equal(t, t0.Add(time.Second), m.PingDue(t0, t0, t0))
	m.Hear(t0.Add(time.Minute))
	assert.Equal(t, t0.Add(31*time.Second), m.PingDue(t0, t0.Add(30*time.Second), t0), "heard, but nothing sent")
	assert.Equal(t, t0.Add(61*time.Second), m.PingDue(t0, t0.Add(2*time.Minute), t0), "sent, but nothing heard")
}

func TestSilence(t *testing.T) {
	t0 := time.Unix(1000, 0)
	m := newMonitor(time.Minute, 4*time.Second, t0)
	assert.Equal(t, 5*time.Second, m.Silence(t0.Add(5*time.Second)))
	m.Arm(t0)
	assert.False(t, m.Expired(t0.Add(time.Hour)))
	assert.Zero(t, m.Silence(t0.Add(time.Hour)), "we were stopped")
}

// While nothing is outstanding, a peer whose process is watched needs no ping, and another one few. A dead one is lost within the timeout.
func TestQuiet(t *testing.T) {
	const timeout, beat = time.Minute, 5 * time.Second
	t0 := time.Unix(1000, 0)
	calm := t0.Add(calmAfter * beat)
	// answered is a peer that answers until then.
	answered := func(watched bool) *livenessMonitor {
		m := newMonitor(timeout, beat, t0)
		if watched {
			m.Watched()
		}
		m.Hear(calm)
		return m
	}
	t.Run("watched", func(t *testing.T) {
		m := answered(true)
		assert.GreaterOrEqual(t, m.PingDue(calm, calm, calm).Sub(calm), never)
		assert.GreaterOrEqual(t, m.Arm(calm).Sub(calm), never)
		later := calm.Add(30 * time.Minute)
		assert.Zero(t, m.Silence(later))
		assert.False(t, m.ShouldReconnect(later))
		require.True(t, m.Work(later), "the read in progress needs another deadline")
		assert.False(t, m.Work(later))
		assert.LessOrEqual(t, m.PingDue(later, later, calm).Sub(later), beat/4)
		assert.False(t, m.ShouldReconnect(later.Add(beat/4)))
		assert.True(t, m.ShouldReconnect(later.Add(beat/3)), "silence counts from the work")
		m.Pinged(later.Add(beat / 4))
		at, lost := runUntilLost(m, later, 0, later.Add(time.Hour))
		require.True(t, lost)
		assert.InDelta(t, timeout, at.Sub(later), float64(time.Second))
	})
	t.Run("elsewhere", func(t *testing.T) {
		m := answered(false)
		due := m.PingDue(calm, calm, calm)
		assert.Equal(t, timeout/4, due.Sub(calm))
		assert.Equal(t, timeout/4, m.Arm(calm).Sub(calm))
		assert.Zero(t, m.Silence(due))
		assert.False(t, m.ShouldReconnect(due))
		require.True(t, m.Pinged(due))
		assert.LessOrEqual(t, m.PingDue(due, due, due).Sub(due), beat/4, "it has not answered")
		m.Hear(due.Add(time.Millisecond))
		assert.Equal(t, timeout/4, m.PingDue(due.Add(time.Millisecond), due, due).Sub(due), "it has")
	})
	t.Run("dead", func(t *testing.T) {
		m, now := answered(false), calm
		sent, pinged := calm, calm
		for !m.Expired(now) {
			require.Less(t, now.Sub(calm), 2*timeout)
			now = earlier(m.Arm(now), m.PingDue(now, sent, pinged))
			if !now.Before(m.PingDue(now, sent, pinged)) {
				m.Pinged(now)
				sent, pinged = now, now
			}
		}
		assert.LessOrEqual(t, now.Sub(calm), timeout+time.Second)
	})
	t.Run("somebody asks", func(t *testing.T) {
		m := answered(true)
		assert.False(t, m.TakePing(calm), "it was heard just now")
		later := calm.Add(time.Hour)
		require.True(t, m.TakePing(later))
		assert.False(t, m.TakePing(later), "once")
		assert.False(t, m.PingDue(later, calm, calm).After(later))
		assert.Equal(t, beat, m.Silence(later.Add(beat)))
		m.Hear(later.Add(beat))
		assert.Zero(t, m.Silence(later.Add(time.Hour)))
	})
	t.Run("without a connection", func(t *testing.T) {
		m := answered(true)
		m.Apart()
		assert.LessOrEqual(t, m.Arm(calm).Sub(calm), beat/4)
	})
}

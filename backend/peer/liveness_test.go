package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// verdict runs l from now on in steps as a reader does, each of which fires late by late; it gives the time of the loss.
func verdict(l *liveness, now time.Time, late time.Duration, until time.Time) (time.Time, bool) {
	for now.Before(until) {
		now = l.arm(now).Add(late)
		if l.expired(now) {
			return now, true
		}
	}
	return now, false
}

func TestLiveness(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = 4 * time.Second
	t.Run("silence", func(t *testing.T) {
		at, lost := verdict(newLiveness(timeout, timeout, t0), t0, 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, timeout+lookTime, at.Sub(t0), "with a last look")
	})
	t.Run("slightly late timers", func(t *testing.T) {
		at, lost := verdict(newLiveness(timeout, timeout, t0), t0, time.Millisecond, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Less(t, at.Sub(t0), timeout+50*time.Millisecond)
	})
	t.Run("heard", func(t *testing.T) {
		l := newLiveness(timeout, timeout, t0)
		l.hear(t0.Add(3 * time.Second))
		at, lost := verdict(l, t0.Add(3*time.Second), 0, t0.Add(time.Hour))
		require.True(t, lost)
		assert.Equal(t, 3*time.Second+timeout+lookTime, at.Sub(t0))
	})
	for _, stopped := range []time.Duration{2 * time.Second, 3900 * time.Millisecond, 4100 * time.Millisecond, time.Minute} {
		t.Run("stopped for "+stopped.String(), func(t *testing.T) {
			l := newLiveness(timeout, timeout, t0)
			l.arm(t0)
			back := t0.Add(stopped)
			require.False(t, l.expired(back), "the peer gets its chance")
			at, lost := verdict(l, back, 0, t0.Add(time.Hour))
			require.True(t, lost)
			assert.GreaterOrEqual(t, at.Sub(back), timeout/2, "measured from the end of the stop")
			assert.LessOrEqual(t, at.Sub(back), timeout)
		})
	}
}

func TestUneasy(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = 3 * time.Second
	t.Run("silence", func(t *testing.T) {
		l, now := newLiveness(timeout, timeout, t0), t0
		for !l.uneasy(now) {
			require.False(t, l.expired(now))
			now = l.arm(now)
		}
		assert.Equal(t, timeout/3, now.Sub(t0))
		l.hear(now)
		assert.False(t, l.uneasy(now))
	})
	t.Run("stopped", func(t *testing.T) {
		l := newLiveness(timeout, timeout, t0)
		l.arm(t0)
		back := t0.Add(2 * time.Second)
		assert.False(t, l.expired(back))
		assert.False(t, l.uneasy(back), "our own fault")
		assert.True(t, l.uneasy(back.Add(timeout/3)))
	})
}

func TestHurry(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const timeout = time.Minute
	l := newLiveness(timeout, timeout, t0)
	l.hurry(t0.Add(time.Second))
	at, lost := verdict(l, t0, 0, t0.Add(time.Hour))
	require.True(t, lost)
	assert.Equal(t, time.Second+lookTime, at.Sub(t0))
	l = newLiveness(timeout, timeout, t0)
	l.hurry(t0.Add(time.Second))
	l.hear(t0)
	at, lost = verdict(l, t0, 0, t0.Add(time.Hour))
	require.True(t, lost)
	assert.Equal(t, timeout+lookTime, at.Sub(t0), "it is back")
}

func TestIdleSessionLivesAndCostsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{PeerTimeout: 4 * time.Second})
		defer p.close()
		before := p.from.Stats().FramesSent + p.to.Stats().FramesSent
		const hours = 1
		time.Sleep(hours * time.Hour)
		sent := p.from.Stats().FramesSent + p.to.Stats().FramesSent - before
		assert.Equal(t, Ready, p.out.State())
		assert.Equal(t, Ready, p.in.State())
		assert.LessOrEqual(t, sent, uint64(4*hours*3600), "a ping and its pong per second and side at most")
		assert.Empty(t, p.i.events)
		assert.Empty(t, p.s.events)
	})
}

// A side with a short timeout is kept alive by the answers of one that pings rarely.
func TestTimeoutsMayDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{PeerTimeout: time.Minute}, Config{PeerTimeout: time.Second})
		defer p.close()
		time.Sleep(5 * time.Minute)
		assert.Equal(t, Ready, p.out.State())
	})
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{PeerTimeout: 4 * time.Second})
		defer p.close()
		release := make(chan struct{})
		p.s.fence = func(wire.Fence) (wire.Fenced, error) { <-release; return wire.Fenced{}, nil }
		p.out.Fence(1, 1, 1, nil) // the target's reader is stuck; its writer still pings
		time.Sleep(time.Minute)
		assert.Equal(t, Ready, p.out.State(), "a stuck handler is not a dead peer")
		close(release)
		want[evFenced](t, p.i.events)
	})
}

func TestSilentPeerIsLost(t *testing.T) {
	s := newTarget()
	to := listen(t, s, func(c *Config) { c.PeerTimeout, c.acks = 100*time.Millisecond, noAcks })
	c := fakePeer(t, to)
	knock(t, c, blob(to), nil)
	err := want[evHello](t, s.events)
	start := time.Now()
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrSilent)
	assert.ErrorContains(t, gone.err, "peer_timeout")
	assert.Same(t, err.in, gone.in)
	assert.Greater(t, time.Since(start), 50*time.Millisecond)
	for { // it pinged, and says why it closes
		f, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		if bye, ok := f.(*wire.Bye); ok {
			assert.Contains(t, bye.Text, "silent")
			return
		}
		require.IsType(t, &wire.Ping{}, f)
	}
}

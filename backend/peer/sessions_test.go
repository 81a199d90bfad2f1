package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// At the bound of sessions a new initiator is refused as busy, unless a peer is silent: then the session with the
// longest silent peer ends.
func TestMaxSessions(t *testing.T) {
	s := newTarget()
	to := listen(t, s, func(c *Config) { c.MaxSessions, c.PeerTimeout, c.Limits = 2, 200*time.Millisecond, &limits.Counts{} })
	from := listen(t, newTarget(), func(c *Config) { c.PeerTimeout = 200 * time.Millisecond })
	live := &pair{from: from, to: to, i: newInitiator(), s: s}
	live.connect(t)
	other := &pair{from: from, to: to, i: newInitiator(), s: s}
	other.connect(t)

	_, refusal := handshakeByHand(t, fakePeer(t, to), blob(to))
	r, ok := refusal.(*wire.Reject)
	require.True(t, ok)
	assert.Equal(t, wire.CodeBusy, r.Code)
	assert.Contains(t, r.Text, "max_sessions")
	assert.EqualValues(t, 1, to.cfg.Limits.Read()["sessions"])

	other.out.Close("going")
	assert.Same(t, other.in, want[evGone](t, s.events).in)
	mute, f := handshakeByHand(t, fakePeer(t, to), blob(to)) // silent from now on; its kernel still acknowledges
	require.IsType(t, &wire.Welcome{}, f)
	silent := want[evHello](t, s.events).in
	next := newInitiator()
	from.Dial(blob(to), 0, next) // retries until there is room
	want[evOffers](t, next.events)
	var gone evGone
	for range 2 { // the new Hello and the end of the silent session, in any order
		select {
		case e := <-s.events:
			if g, ok := e.(evGone); ok {
				gone = g
			}
		case <-time.After(testTimeout):
			t.Fatal("nothing came")
		}
	}
	assert.Same(t, silent, gone.in)
	assert.ErrorIs(t, gone.err, ErrSilent)
	assert.ErrorContains(t, gone.err, "max_sessions")
	for { // the silent peer is told, too
		f, err := wire.ReadFrame(mute, 0)
		require.NoError(t, err)
		if bye, ok := f.(*wire.Bye); ok {
			assert.Contains(t, bye.Text, "max_sessions")
			break
		}
	}
	want[evReady](t, next.events)
	assert.Equal(t, Ready, live.out.State())
}

// heldBy makes inbound sessions that hold the given bytes of frames, without a call of shed.
func heldBy(t *testing.T, n *Node, bytes ...int) (held []*stream) {
	t.Helper()
	shed := n.env.Shed
	n.env.Shed = func() {}
	defer func() { n.env.Shed = shed }()
	for _, b := range bytes {
		s := newIn(n.base, newTarget(), &wire.Hello{}, limits.Owner{}).stream
		require.Nil(t, n.sessions.place(s, limits.Owner{}, trust.Peer{}))
		s.Send(&wire.Revoke{Regions: make([]uint64, b/8)})
		held = append(held, s)
	}
	return held
}

// over reports which sessions have ended.
func over(sessions []*stream) (over []bool) {
	for _, s := range sessions {
		over = append(over, s.State().Over())
	}
	return over
}

// Sessions end until the rest fits, even if shed is called only once.
func TestShedsAllThatIsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Memory: 100 << 10}, newTarget())
		defer n.Close()
		held := heldBy(t, n, 80<<10, 82<<10, 84<<10, 8<<10)
		n.sessions.shed()
		synctest.Wait()
		assert.Equal(t, []bool{false, true, true, false}, over(held), "those that hold the most")
		assert.LessOrEqual(t, n.env.Held.Load(), int64(100<<10))
		assert.Equal(t, uint64(2), n.env.Count.Overflows.Load())
	})
}

// Memory that an ended session has not released yet does not end another session.
func TestShedsNoMoreThanIsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Memory: 100 << 10}, newTarget())
		defer n.Close()
		held := heldBy(t, n, 60<<10, 30<<10)
		n.env.Held.Add(80 << 10) // of a session whose reader has not noticed its end
		n.sessions.shed()
		synctest.Wait()
		assert.Equal(t, []bool{false, false}, over(held))
	})
}

// A call of shed during a look causes another look, also if the look has just found nothing.
func TestShedForgetsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{Memory: 100 << 10}, newTarget())
		defer n.Close()
		r := n.sessions
		r.shedAgain, r.shedding = true, true // as the first call of shed sets them,
		require.True(t, r.shedRequested())
		require.False(t, r.shedOne()) // and its look finds nothing
		held := heldBy(t, n, 80<<10, 82<<10)
		r.shed()
		synctest.Wait()
		assert.Equal(t, []bool{false, false}, over(held), "there is no second one")
		r.shedAll() // the first call continues
		assert.Equal(t, []bool{false, true}, over(held))
		assert.False(t, r.shedding)
	})
}

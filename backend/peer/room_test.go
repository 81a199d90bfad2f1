package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// At the bound of sessions a newcomer is told to come back, unless a peer is silent: then the session that is silent for longest gives way.
func TestMaxSessions(t *testing.T) {
	s := newTarget()
	to := listen(t, s, func(c *Config) { c.MaxSessions, c.PeerTimeout = 2, 200*time.Millisecond })
	from := listen(t, newTarget(), func(c *Config) { c.PeerTimeout = 200 * time.Millisecond })
	live := &pair{from: from, to: to, i: newInitiator(), s: s}
	live.connect(t)
	other := &pair{from: from, to: to, i: newInitiator(), s: s}
	other.connect(t)

	c := fakePeer(t, to)
	r, ok := knock(t, c, blob(to), nil).(*wire.Reject)
	require.True(t, ok)
	assert.Equal(t, wire.CodeBusy, r.Code)
	assert.Contains(t, r.Text, "max_sessions")

	other.out.Close("going")
	assert.Same(t, other.in, want[evGone](t, s.events).in)
	mute := fakePeer(t, to) // it says nothing more; its kernel answers for it
	require.IsType(t, &wire.Welcome{}, knock(t, mute, blob(to), nil))
	silent := want[evHello](t, s.events).in
	next := newInitiator()
	from.Dial(blob(to), 0, next) // tries until there is room
	want[evOffers](t, next.events)
	var gone evGone
	for range 2 { // the newcomer's Hello and the end of the silent one, in any order
		select {
		case e := <-s.events:
			if g, ok := e.(evGone); ok {
				gone = g
			}
		case <-time.After(patience):
			t.Fatal("nothing came")
		}
	}
	assert.Same(t, silent, gone.in)
	assert.ErrorIs(t, gone.err, ErrSilent)
	assert.ErrorContains(t, gone.err, "max_sessions")
	want[evReady](t, next.events)
	assert.Equal(t, Ready, live.out.State())
}

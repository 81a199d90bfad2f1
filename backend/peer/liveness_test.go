package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func TestSilentPeerIsLost(t *testing.T) {
	s := newTarget()
	to := listen(t, s, func(c *Config) { c.PeerTimeout, c.acks = 100*time.Millisecond, noAcks })
	c, _ := handshakeByHand(t, fakePeer(t, to), blob(to))
	err := want[evHello](t, s.events)
	start := time.Now()
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrSilent)
	assert.ErrorContains(t, gone.err, "peer_timeout")
	assert.Same(t, err.in, gone.in)
	assert.Greater(t, time.Since(start), 50*time.Millisecond)
	for { // the target pinged, and its Bye has the reason
		f, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		if bye, ok := f.(*wire.Bye); ok {
			assert.Contains(t, bye.Text, "silent")
			return
		}
		require.IsType(t, &wire.Ping{}, f)
	}
}

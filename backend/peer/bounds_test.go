package peer

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// many makes n sessions with different engines, by hand.
func many(t *testing.T, to *Node, s *target, n int) (conns []net.Conn) {
	for range n {
		c, f := handshakeByHand(t, fakePeer(t, to), blob(to))
		require.IsType(t, &wire.Welcome{}, f)
		want[evHello](t, s.events)
		conns = append(conns, c)
	}
	return conns
}

// The sessions of one address have their own bound, which the refusal names. A place becomes free when a session
// ends.
func TestMaxSessionsPerSource(t *testing.T) {
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.MaxSessions, c.MaxPerSource = 8, 2 })
	conns := many(t, to, s, 2)
	_, f := handshakeByHand(t, fakePeer(t, to), blob(to))
	r, ok := f.(*wire.Reject)
	require.True(t, ok)
	assert.Equal(t, wire.CodeBusy, r.Code)
	assert.Contains(t, r.Text, "max_sessions_per_source")
	require.NoError(t, wire.WriteFrame(conns[0], &wire.Bye{}))
	want[evGone](t, s.events)
	next := &pair{from: listen(t, newTarget()), to: to, i: newInitiator(), s: s}
	next.connect(t) // retries until there is room
}

// Unfinished frames take memory up to a bound over all peers. Above the bound, the session with the most memory ends.
func TestHalfFramesOfAllPeers(t *testing.T) {
	const memory = 8 << 20
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.Memory = memory })
	honest := &pair{from: listen(t, newTarget(), minute), to: to, i: newInitiator(), s: s}
	honest.connect(t)
	conns := many(t, to, s, 12)
	half := make([]byte, 5+900<<10)
	binary.BigEndian.PutUint32(half, wire.MaxBody)
	half[4] = byte(wire.TypeKeysReq)
	for _, c := range conns {
		go func() { _, _ = c.Write(half) }() // the node closes some of them meanwhile
	}
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrOverflow)
	assert.ErrorContains(t, gone.err, "control_memory")
	eventually(t, func() bool { return to.env.Held.Load() <= memory }, "within the bound")
	honest.out.Fence(1, 1, 1, nil)
	for {
		select {
		case e := <-s.events:
			require.IsType(t, evGone{}, e)
			require.NotSame(t, honest.in, e.(evGone).in)
			continue
		case e := <-honest.i.events:
			require.IsType(t, evFenced{}, e)
		}
		break
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, func() bool { return to.env.Held.Load() < 64<<10 }, "all memory is released")
}

// Unacknowledged answers count towards the bound.
func TestAnswersOfAllPeers(t *testing.T) {
	s := newTarget()
	to := listen(t, s, minute, func(c *Config) { c.Memory = 1 << 20 })
	conns := many(t, to, s, 1)
	conn := conns[0]
	go func() {
		for id := uint64(1); ; id++ { // without reading or acknowledging
			if wire.WriteFrame(conn, &wire.KeysReq{ID: id, Ranges: ranges(wire.MaxRanges, 0)}) != nil {
				return
			}
		}
	}()
	gone := want[evGone](t, s.events)
	assert.ErrorIs(t, gone.err, ErrOverflow)
	assert.ErrorContains(t, gone.err, "control_memory")
	eventually(t, func() bool { return to.env.Held.Load() == 0 }, "all memory is released")
}

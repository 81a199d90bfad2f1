package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// TestTold: an initiator's pings and answers tell the target what it moves, also when nothing else goes over the connection.
func TestTold(t *testing.T) {
	p := newPair(t, minute)
	require.Eventually(t, func() bool { return !p.in.Told().At.IsZero() }, testTimeout, time.Millisecond)
	p.i.written.Store(1 << 20)
	require.Eventually(t, func() bool { return p.in.Told().Written == 1<<20 }, testTimeout, time.Millisecond)
	require.EqualValues(t, 3<<20, p.in.Told().Read)
	require.Zero(t, p.out.stream.r.told.read().Moves, "a target moves nothing")
}

// TestToldRates: a rate is of a second at least, the first word has none, and a count that falls gives 0.
func TestToldRates(t *testing.T) {
	var told told
	now := time.Now()
	told.take(now, wire.Moves{Written: 5})
	told.take(now.Add(time.Millisecond), wire.Moves{Written: 6, Read: 1})
	require.Equal(t, Told{Moves: wire.Moves{Written: 6, Read: 1}, At: now.Add(time.Millisecond)}, told.read())
	told.take(now.Add(2*time.Second), wire.Moves{Written: 25, Read: 8})
	require.Equal(t, Told{Moves: wire.Moves{Written: 25, Read: 8}, WrittenRate: 10, ReadRate: 4, At: now.Add(2 * time.Second)}, told.read())
	told.take(now.Add(3*time.Second), wire.Moves{Written: 1, Read: 8})
	require.Zero(t, told.read().WrittenRate+told.read().ReadRate)
}

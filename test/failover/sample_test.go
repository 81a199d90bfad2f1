package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAround: a gap begins with the failure, also where the first sample after it comes late and has moved on, and ends with bytes of a
// rail that works. Bytes of the failed rail end no gap. The counters' pauses before the failure are no part of it.
func TestAround(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	const k = 64 << 10
	l := samples{{at(0), 0, 0}, {at(7), k, 2 * k}, {at(10), 2 * k, 4 * k}, {at(15), 2 * k, 6 * k}, {at(45), 3 * k, 7 * k}, {at(50), 4 * k, 8 * k}}
	before, gap, rate := l.around(at(12), at(52))
	require.Equal(t, 7*time.Millisecond, before)
	require.Equal(t, 33*time.Millisecond, gap)
	require.InDelta(t, 2*k/0.007/1e6, rate, 0.01)

	_, gap, _ = l.around(at(12), at(120))
	require.Equal(t, 70*time.Millisecond, gap, "nothing moves to the end")

	busy := samples{}
	for ms := range 100 { // a Fail that takes 60 ms is no gap while bytes move
		busy = append(busy, sample{at(ms), uint64(ms) * k, uint64(ms) * k})
	}
	_, gap, _ = busy.around(at(20), at(99))
	require.Equal(t, time.Millisecond, gap)

	before, gap, _ = samples{}.around(at(0), at(5))
	require.Zero(t, before+gap)
}

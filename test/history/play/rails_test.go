package play

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStandstill: a gap begins with the failure, also where the first sample after it comes late, and ends with bytes of a rail that works, in
// the way that waits longest. Bytes of the failed rail end no gap.
func TestStandstill(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	const k = 64 << 10
	two := func(works, fails uint64) [2][2]uint64 { return [2][2]uint64{{works, works}, {fails, fails}} }
	l := samples{{at(0), two(0, 0)}, {at(7), two(k, k)}, {at(10), two(2*k, 2*k)}, {at(15), two(2*k, 4*k)}, {at(45), two(3*k, 4*k)}, {at(50), two(4*k, 4*k)}}
	require.Equal(t, 7*time.Millisecond, l.standstill(at(0), at(12), 0, 1))
	require.Equal(t, 33*time.Millisecond, l.standstill(at(12), at(52), 0))
	require.Equal(t, 70*time.Millisecond, l.standstill(at(12), at(120), 0), "nothing moves to the end")
	l[4].sent[0][1] = 2 * k
	require.Equal(t, 38*time.Millisecond, l.standstill(at(12), at(52), 0), "one of the ways")
}

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTogether: rare ticks come at multiples of their interval, whenever each engine began, and none comes soon.
func TestTogether(t *testing.T) {
	for at := range 3 * 64 {
		since := time.Duration(at) * time.Second
		d := together(since, idleMost)
		require.Zero(t, (since+d)%idleMost)
		require.GreaterOrEqual(t, d, idleMost/2)
		require.Less(t, d, 2*idleMost)
	}
}

// TestStir: the first control frame rouses the core's threads, also while the ticks are frequent: they may sleep long by then, and the peer
// may wait for what it has sent without waking us. Later ones do so once in a while, or when the ticks are rare.
func TestStir(t *testing.T) {
	s := newStir()
	roused := func() bool {
		select {
		case <-s.sweeper:
			s.roused.Store(time.Now().UnixNano()) // as the sweeper does
			return true
		default:
			return false
		}
	}
	s.peer()
	require.True(t, roused())
	s.peer()
	require.False(t, roused())
	s.idle.Store(true)
	s.peer()
	require.True(t, roused())
	s.idle.Store(false)
	s.roused.Add(-2 * int64(time.Second))
	s.peer()
	require.True(t, roused())
}

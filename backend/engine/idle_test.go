package engine

import (
	"runtime"
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

// TestGiveBack: memory that is not in use goes back to the kernel, and nothing happens if there is little to give.
func TestGiveBack(t *testing.T) {
	giveBack()
	func() {
		blocks := make([][]byte, 64)
		for i := range blocks {
			blocks[i] = make([]byte, 1<<20)
		}
		runtime.KeepAlive(blocks)
	}()
	before := ownMemory()
	giveBack()
	require.Less(t, ownMemory(), before-(32<<20))
	var m, after runtime.MemStats
	runtime.ReadMemStats(&m)
	giveBack()
	runtime.ReadMemStats(&after)
	require.Equal(t, m.NumForcedGC, after.NumForcedGC)
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

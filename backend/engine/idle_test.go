package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
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

// TestOwedLooks: while one peer owes something that does not come, it is asked often. All peers are looked at no more often than without that: a link is taken
// for one that does not connect after a number of looks.
func TestOwedLooks(t *testing.T) {
	h := onLinks(t, 2, fake.TCPCaps())
	p := h.pair(64 << 10)
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	p.b.rail().Stall()
	defer p.b.rail().Release()
	x := p.a.whole(transfer.Write, p.mine, p.theirs).post().posted()
	looks := map[time.Time]bool{}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		looks[p.a.remote("bob").inside().Looked] = true
	}
	require.Less(t, len(looks), 30, "16, and 50 if each look at what is owed is one at all")
	p.b.rail().Release()
	require.Equal(t, done, x.wait())
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

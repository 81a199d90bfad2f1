package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rails"
)

// way is an endpoint between two addresses. Only what cut asks for is there.
type way struct {
	provider.Endpoint
	provider.Listener
	own, peer string
	waits     bool // TCP has sent again in vain
}

func (w *way) Ends() (own, peer string) { return w.own, w.peer }
func (w *way) Unanswered(bool) bool     { return w.waits }
func (w *way) Copying() int             { return 0 }
func (w *way) Shut()                    {}

// TestCutLinks: when the peer is reached again, the links whose TCP waits are fenced, those over the way that works last. Where a link of another rail is healthy,
// rail_timeout decides about all but that way. Links that do not work have their own ways back.
func TestCutLinks(t *testing.T) {
	own, peer := netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.1.2")
	link := func(num int, waits bool) *Link {
		name := map[int][2]string{0: {"10.0.0.1:9", "10.0.0.2:8"}, 1: {"10.0.1.1:9", "[::ffff:10.0.1.2]:8"}, 2: {"10.0.2.1:9", "10.0.2.2:8"}}[num]
		return &Link{Num: num, Rail: &rails.Rail{}, LinkState: LinkState{Up: true, Phase: Working}, EP: &way{own: name[0], peer: name[1], waits: waits}}
	}
	numbers := func(links ...*Link) (out []int) {
		for _, l := range cut(links, own, peer) {
			out = append(out, l.Num)
		}
		return out
	}
	require.Empty(t, numbers(link(0, false), link(1, false)), "nothing waits")
	require.Equal(t, []int{0, 2, 1}, numbers(link(0, true), link(1, true), link(2, true)))
	require.Equal(t, []int{1}, numbers(link(0, true), link(1, true), link(2, false)))
	require.Empty(t, numbers(link(0, true), link(1, false)), "the healthy one takes over after rail_timeout")
	away := link(2, true)
	away.Phase = Fencing
	require.Equal(t, []int{0}, numbers(link(0, true), away))
	down := link(1, true)
	down.Up = false
	require.Equal(t, []int{0}, numbers(link(0, true), down))
}

// TestStall: operations in flight without a completion are owed after a while, wherever a look falls in it. A completion, and a link without work, begin it anew.
func TestStall(t *testing.T) {
	var m meter
	now := time.Now()
	look := func(after time.Duration, inFlight, completions uint64) bool {
		m.last.InFlight, m.last.Completions = inFlight, completions
		stalls, _ := m.stall(now.Add(after))
		return stalls
	}
	require.False(t, look(0, 0, 0))
	require.False(t, look(time.Millisecond, 3, 0), "posted just now")
	require.False(t, look(stallsAfter-1, 3, 0))
	require.True(t, look(stallsAfter, 3, 0))
	require.True(t, look(time.Minute, 3, 0))
	require.False(t, look(time.Minute+1, 3, 1), "one has completed")
	require.False(t, look(time.Minute+stallsAfter, 3, 1))
	require.True(t, look(time.Minute+stallsAfter+1, 3, 1))
	require.False(t, look(time.Hour, 0, 1), "nothing is owed")
	require.False(t, look(2*time.Hour, 3, 1), "posted since the look before, which was long ago")
	require.False(t, look(2*time.Hour+stallsAfter-1, 3, 1))
	require.True(t, look(2*time.Hour+stallsAfter, 3, 1))
}

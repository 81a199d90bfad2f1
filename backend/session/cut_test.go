package session

import (
	"net/netip"
	"testing"

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

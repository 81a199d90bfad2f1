package link

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/stats"
)

// named is a rail with only a name.
type named struct{ provider.Rail }

func (named) Device() provider.Device { return provider.Device{Fabric: "fake", Name: "fake0"} }

// The history keeps the last sessions that ended.
func TestHistory(t *testing.T) {
	var h History
	r := &rails.Rail{Rail: named{}}
	for i := range mostHistory + 3 {
		h.Add(NewView(stats.Peer{Agent: fmt.Sprint(i)}, []*Link{{Rail: r, meter: &meter{}}}, func(int) string { return "" }), "lost")
	}
	h.Add(NewView(stats.Peer{Agent: "no links"}, nil, nil), "lost")
	all := h.Besides(nil)
	require.Len(t, all, mostHistory)
	require.Equal(t, "3", all[0].peer.Agent)
	require.Len(t, h.Besides(all[:1]), mostHistory-1, "a live session is not listed twice")
}

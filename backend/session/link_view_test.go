package session

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
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

// A link has a burst of lines, then one a second. Lines below the log's level take no place.
func TestLog(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	l := &Link{lines: limits.Lines{Burst: burstLines}}
	for range 100 {
		l.Log(log, slog.LevelDebug, "not at this level")
	}
	for range 1000 {
		l.Log(log, slog.LevelInfo, "rail down", "rail", "a")
	}
	n := strings.Count(text.String(), "rail down")
	require.GreaterOrEqual(t, n, burstLines)
	require.Less(t, n, 100, "a thousand lines take less than a minute")
	require.NotContains(t, text.String(), "not at this level")
}

// The reason of a link that is not proved suspects a firewall only where one can be.
func TestReasonNamesAFirewallBetweenHosts(t *testing.T) {
	t.Parallel()
	for ends, near := range map[[2]string]bool{
		{"127.0.0.1:40", "127.0.0.1:50"}:        true,
		{"127.0.0.1:40", "127.0.0.2:50"}:        true,
		{"[::1]:40", "[::1]:50"}:                true,
		{"10.0.0.1:40", "[::ffff:10.0.0.1]:50"}: true,
		{"10.0.0.1:40", "10.0.0.2:50"}:          false,
		{"rail", "rail"}:                        false,
	} {
		require.Equal(t, near, oneHost(ends[0], ends[1]), ends)
		l := &Link{Rail: &rails.Rail{Rail: named{}}, endsText: " (" + ends[0] + " to " + ends[1] + ")", oneHost: near}
		if near {
			require.Contains(t, l.Reason(), BusyHost)
			require.NotContains(t, l.Reason(), "firewall")
		} else {
			require.Contains(t, l.Reason(), "a firewall?")
		}
	}
}

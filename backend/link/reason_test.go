package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/rails"
)

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

package peers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWarnings: an error comes with what GORAIL logged about that peer, or else with the last warnings.
func TestWarnings(t *testing.T) {
	var said strings.Builder
	for i := range 3 * mostWarnings {
		fmt.Fprintf(&said, "time=1 level=INFO msg=in peer=all-%d code=GR-1\ntime=1 level=WARN msg=out agent=all-0 peer=all-%d code=GR-1041\n", i, i)
	}
	require.Equal(t, []string{"time=1 level=WARN msg=out agent=all-0 peer=all-1 code=GR-1041"}, warnings(said.String(), "all-1"))
	require.Len(t, warnings(said.String(), "all-100"), mostWarnings)
	require.Empty(t, warnings("nothing\n", ""))
}

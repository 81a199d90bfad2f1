package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/procstat"
)

// TestRailAfterRails: a rail that is opened after others have been closed has pages where it has regions, as the first had. Memory that malloc had
// given out before would be written: 9 MiB for each rail.
func TestRailAfterRails(t *testing.T) {
	const together = 4
	cycle := func() (resident int64) {
		var list []interface{ Close() error }
		for range together {
			list = append(list, open(t, Options{}))
		}
		u, err := procstat.Self()
		require.NoError(t, err)
		for _, r := range list {
			require.NoError(t, r.Close())
		}
		return u.RSSKiB
	}
	first := cycle()
	for range 4 {
		require.Less(t, cycle()-first, int64(together*4<<10), "KiB more than at the first time")
	}
}

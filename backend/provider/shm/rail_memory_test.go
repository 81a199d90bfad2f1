package shm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/procstat"
	"gorail/test/drive"
)

// TestRegisterAfterClose: a closed rail takes no memory, and opens nothing that nobody closes.
func TestRegisterAfterClose(t *testing.T) {
	r, mem := open(t, Options{}), drive.Alloc(4096)
	m, err := r.Register(drive.Addr(mem), 4096, 0, option.PeersBoth)
	require.NoError(t, err)
	require.ErrorIs(t, r.Close(), unix.EBUSY)
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
	before, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	_, err = r.Register(drive.Addr(drive.Alloc(1<<20)), 1<<20, 0, option.PeersBoth)
	require.ErrorIs(t, err, provider.ErrRegister)
	require.ErrorIs(t, err, unix.ESHUTDOWN)
	after, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	require.Len(t, after, len(before))
}

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

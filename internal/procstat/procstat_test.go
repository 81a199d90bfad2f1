package procstat_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/internal/procstat"
)

// TestSelf: the figures are positive, and one more descriptor is counted.
func TestSelf(t *testing.T) {
	u, err := procstat.Self()
	require.NoError(t, err)
	require.Positive(t, u.RSSKiB)
	require.Positive(t, u.Threads)
	require.NotEmpty(t, u.SigCgt)
	require.Positive(t, procstat.CPUTime())

	before, err := procstat.FDs()
	require.NoError(t, err)
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	after, err := procstat.FDs()
	require.NoError(t, err)
	more := slices.DeleteFunc(after, func(name string) bool { return slices.Contains(before, name) })
	require.Len(t, more, 1)
}

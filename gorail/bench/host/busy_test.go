package host

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOthers: what this process and its children use is not what others use, and short times say nothing.
func TestOthers(t *testing.T) {
	begin := Use{all: 100, used: 40, ours: 5}
	require.Equal(t, 0.5, begin.until(Use{all: 110, used: 48, ours: 8}))
	require.Zero(t, begin.until(Use{all: 110, used: 42, ours: 8}), "ticks are coarse")
	require.Zero(t, begin.until(Use{all: 100.3, used: 40.3, ours: 5}))
	require.Zero(t, Use{}.until(begin), "/proc/stat did not tell")
	u := Look()
	require.Positive(t, u.all)
	require.Positive(t, u.used)
	require.Positive(t, u.ours)
}

package result

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCells: what is no number is an empty cell.
func TestCells(t *testing.T) {
	require.Empty(t, Num(math.NaN()).String())
	require.Empty(t, Num(math.Inf(1)).String())
	require.Equal(t, "-1.50", Num(-1.5).String())
	require.Equal(t, "1.95 x", Ratio(1.95, 1))
	require.Equal(t, "as much as", Ratio(1.03, 1))
	require.Equal(t, "not comparable with", Ratio(1, 0))
}

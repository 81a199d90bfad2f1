package layout

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIDs: each block comes once. Seeds give different orders, except in order. Runs stay whole.
func TestIDs(t *testing.T) {
	for _, order := range Orders {
		for _, n := range []int{0, 1, 15, 16, 17, 1000} {
			a, b := IDs(order, n, 1), IDs(order, n, 2)
			require.Equal(t, a, IDs(order, n, 1))
			for _, ids := range [][]int32{a, b} {
				sorted := slices.Sorted(slices.Values(ids))
				require.Len(t, sorted, n)
				for i, id := range sorted {
					require.EqualValues(t, i, id, "%s %d", order, n)
				}
			}
			if n == 1000 {
				require.Equal(t, order == InOrder, slices.Equal(a, b), order)
			}
			if order != Runs {
				continue
			}
			for i := range a {
				if i%RunLength != 0 {
					require.Equal(t, a[i-1]+1, a[i], "block %d of %d", i, n)
				}
			}
		}
	}
}

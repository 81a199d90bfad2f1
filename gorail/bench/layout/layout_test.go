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

// TestModels: the bytes of a token are those that the models' papers and configurations give.
func TestModels(t *testing.T) {
	for name, bytes := range map[string]uint64{"llama-8b": 131_072, "llama-70b-tp8": 40_960, "deepseek-mla": 70_272, "qwen-32b": 262_144} {
		m, err := Find(name)
		require.NoError(t, err)
		require.Equal(t, 128*bytes, uint64(m.Layers*m.LayerBlocks(128))*m.Block, name)
		require.Equal(t, m.LayerBlocks(1), m.LayerBlocks(m.Page), "a page is the least")
	}
	_, err := Find("gpt")
	require.ErrorContains(t, err, "want llama-8b")
	m, err := Find("llama-8b")
	require.NoError(t, err)
	require.Equal(t, 8000, m.Blocks())
}

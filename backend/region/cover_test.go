package region

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// TestCover compares random lists with a search through all of them. Memory types and devices differ.
func TestCover(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		random := func(most uint64) wire.Range {
			return wire.Range{Addr: 1 + rnd.Uint64N(40), Len: rnd.Uint64N(most), Dev: rnd.Uint64N(2), Mem: rnd.Int32N(2)}
		}
		list := make([]*Region, rnd.IntN(12))
		for i := range list {
			list[i] = &Region{Claim: wire.Claim{Range: random(20)}}
		}
		c := NewCover(list)
		for range 100 {
			q := random(6)
			name := fmt.Sprintf("seed %d, %+v", seed, q)
			var last uint64
			overlaps := false
			for _, g := range list {
				if g.Mem != q.Mem || g.Dev != q.Dev {
					continue
				}
				if g.Contains(q.Addr, 1) {
					last = max(last, g.Addr+g.Len)
				}
				overlaps = overlaps || q.Len > 0 && g.Len > 0 && g.Addr < q.Addr+q.Len && q.Addr < g.Addr+g.Len
			}
			require.Equal(t, overlaps, c.Overlaps(q), name)
			if g := c.At(q, q.Addr); last == 0 {
				require.Nil(t, g, name)
			} else {
				require.NotNil(t, g, name)
				require.True(t, g.Contains(q.Addr, 1) && g.Mem == q.Mem && g.Dev == q.Dev, name)
				require.Equal(t, last, g.Addr+g.Len, name)
			}
		}
	}
}

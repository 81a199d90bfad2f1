package hostmem

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Windows are disjoint and in order, and include both ends. A byte of a window has only one address. A byte between
// windows repeats once per tile.
func TestTiled(t *testing.T) {
	for _, size := range []uint64{77, 6 << 20, 9<<20 + 1, 1<<30 + 5, 4<<30 + 3<<20 + 77, 5 << 30} {
		w := Windows(size)
		require.Zero(t, w[0].Off)
		for i := range w[1:] {
			require.Less(t, w[i].Off+w[i].Len, w[i+1].Off)
		}
		require.Equal(t, size, w[len(w)-1].Off+w[len(w)-1].Len)
		b, err := Alloc(int(size), Tiled)
		require.NoError(t, err)
		for i, r := range w {
			b.B[r.Off], b.B[r.Off+r.Len-1] = byte(2*i+1), byte(2*i+2)
		}
		for i, r := range w {
			require.Equal(t, [2]byte{byte(2*i + 1), byte(2*i + 2)}, [2]byte{b.B[r.Off], b.B[r.Off+r.Len-1]})
			if i == 0 || r.Off-w[i-1].Off-w[i-1].Len < Tile {
				continue
			}
			b.B[r.Off-Tile] = byte(100 + i)
			require.Equal(t, byte(100+i), b.B[r.Off-2*Tile])
		}
		require.NoError(t, b.Free())
	}
}

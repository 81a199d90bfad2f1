package rank

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShapes: the models have the sizes of Llama 3, and the ranks of one add up to it.
func TestShapes(t *testing.T) {
	require.InDelta(t, 16.06e9, float64(Models[0].Bytes(1)), 0.01e9)
	require.InDelta(t, 141.1e9, float64(Models[2].Bytes(1)), 0.1e9)
	require.InDelta(t, float64(Models[2].Bytes(1)), float64(8*Models[1].Bytes(1)), 0.03e9, "norms are at every rank")
	for i, n := range []int{291, 723, 723} {
		require.Len(t, Models[i].tensors(1), n)
		require.Len(t, Models[i].tensors(1<<20), n)
	}
}

// TestSpans: both halves of a tensor have each of its bytes once, and fill the workers' shards without a gap.
func TestSpans(t *testing.T) {
	for _, by := range []byte{'r', 'c'} {
		x := tensor{6, 10, by}
		seen := make([]int, x.bytes())
		for half := range 2 {
			at := uint64(0)
			for _, s := range x.spans(half) {
				require.Equal(t, at, s.worker)
				at += s.size
				for i := range s.size {
					seen[s.trainer+i]++
				}
			}
			require.Equal(t, x.bytes()/2, at)
		}
		for i, n := range seen {
			require.Equal(t, 1, n, "%c: byte %d", by, i)
		}
	}
	require.Len(t, tensor{6, 10, 'c'}.spans(1), 6)
	require.Equal(t, []span{{0, 0, 20}}, tensor{1, 10, 0}.spans(1))
	require.Equal(t, []span{{0, 0, 120}}, tensor{6, 10, 'c'}.spans(Whole))
}

// TestCheck: one wrong byte anywhere is found, and its tensor is named.
func TestCheck(t *testing.T) {
	s := &Server{in: OpenArgs{Model: Model{Hidden: 64, Inner: 128, KV: 16, Vocab: 32, Ranks: 1, Layers: 1}, Scale: 1, Half: Whole}}
	s.tensors = s.in.Model.tensors(1)
	require.NoError(t, s.alloc())
	require.NoError(t, s.Fill(7, nil))
	require.NoError(t, s.Check(7, nil))
	require.Error(t, s.Check(8, nil))
	last := len(s.bytes) - 1
	s.bytes[last][len(s.bytes[last])-1] ^= 1
	require.ErrorContains(t, s.Check(7, nil), "tensor 11, byte 127")
}

package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/test/worker"
)

// TestPattern: a window of the pattern does not depend on how it is cut, and
// one wrong byte is found where it is.
func TestPattern(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		pos := rapid.Uint64Range(0, 1<<40).Draw(t, "pos")
		n := rapid.IntRange(1, 200_000).Draw(t, "n")
		b := make([]byte, n)
		worker.Fill(b, seed, pos)
		require.EqualValues(t, -1, worker.Diff(b, seed, pos))
		cut := rapid.IntRange(0, n-1).Draw(t, "cut")
		require.EqualValues(t, -1, worker.Diff(b[cut:], seed, pos+uint64(cut)))
		b[cut]++
		require.EqualValues(t, cut, worker.Diff(b, seed, pos))
	})
}

func TestLayoutDescs(t *testing.T) {
	l := worker.Layout{Off: 16, Len: 8, Stride: 24, Count: 100, Shuffle: 3}
	seen := map[uint64]bool{}
	for _, d := range l.Descs(1000) {
		require.EqualValues(t, 8, d.Len)
		require.Zero(t, (d.Addr-1016)%24)
		seen[d.Addr] = true
	}
	require.Len(t, seen, 100)
	require.EqualValues(t, 16+99*24+8, l.End())
}

package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/worker"
)

// TestLayoutDescs: a shuffled layout has every block once.
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

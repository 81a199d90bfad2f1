package pattern_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/internal/pattern"
)

// TestPattern: a part of the pattern does not depend on how it is cut, and Diff finds one wrong byte at its position.
func TestPattern(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		pos := rapid.Uint64Range(0, 1<<40).Draw(t, "pos")
		n := rapid.IntRange(1, 200_000).Draw(t, "n")
		b := make([]byte, n)
		pattern.Fill(b, seed, pos)
		require.EqualValues(t, -1, pattern.Diff(b, seed, pos))
		cut := rapid.IntRange(0, n-1).Draw(t, "cut")
		require.EqualValues(t, -1, pattern.Diff(b[cut:], seed, pos+uint64(cut)))
		b[cut]++
		require.EqualValues(t, cut, pattern.Diff(b, seed, pos))
	})
}

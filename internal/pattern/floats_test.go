package pattern

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFloats: the numbers have about the deviation of a normal distribution, and a wrong byte is found.
func TestFloats(t *testing.T) {
	t.Parallel()
	b := make([]byte, 1<<20)
	Fill(b, Floats|3, 6)
	var sum, squares float64
	for i := 0; i < len(b); i += 2 {
		v := float64(math.Float32frombits(uint32(b[i])<<16 | uint32(b[i+1])<<24))
		sum, squares = sum+v, squares+v*v
	}
	n := float64(len(b) / 2)
	require.InDelta(t, 0, sum/n, 0.02)
	require.InDelta(t, 1.12, math.Sqrt(squares/n), 0.02, "mantissas are even")
	require.EqualValues(t, -1, Diff(b, Floats|3, 6))
	b[700001] ^= 1
	require.EqualValues(t, 700001, Diff(b, Floats|3, 6))
	part := make([]byte, 101)
	Fill(part, Floats|3, 6+777)
	require.Equal(t, b[777:777+101], part, "a part that begins and ends within numbers")
}

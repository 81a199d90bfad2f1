package mr

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKeySizes(t *testing.T) {
	for _, bad := range []int{-1, 0, 9} {
		_, err := NewKeyAllocator(bad)
		assert.Error(t, err)
	}
	for size := 1; size <= 8; size++ {
		a, err := NewKeyAllocator(size)
		require.NoError(t, err)
		key, err := a.Alloc()
		require.NoError(t, err)
		if size < 8 {
			assert.Less(t, key, uint64(1)<<(8*size))
		}
	}
}

// TestKeysAreRandom: each bit is set in about half of the keys, and differs from the previous key in about half. With 4,000
// keys, a fair bit is outside these bounds once in 10^30.
func TestKeysAreRandom(t *testing.T) {
	const n = 4000
	for _, size := range []int{4, 8} {
		a, err := NewKeyAllocator(size)
		require.NoError(t, err)
		var set, differ [64]int
		var last uint64
		for range n {
			key, err := a.Alloc()
			require.NoError(t, err)
			require.LessOrEqual(t, bits.Len64(key), 8*size)
			for b := range 8 * size {
				set[b] += int(key >> b & 1)
				differ[b] += int((key ^ last) >> b & 1)
			}
			last = key
		}
		for b := range 8 * size {
			assert.InDelta(t, n/2, set[b], 360, "bit %d of %d bytes", b, size)
			assert.InDelta(t, n/2, differ[b], 360, "bit %d of %d bytes, against the key before", b, size)
		}
	}
}

func TestKeysRunOut(t *testing.T) {
	a, err := NewKeyAllocator(1)
	require.NoError(t, err)
	seen := map[uint64]bool{}
	for range 254 {
		key, err := a.Alloc()
		require.NoError(t, err)
		require.False(t, seen[key] || key == 0 || key == 255, "key %d", key)
		seen[key] = true
	}
	_, err = a.Alloc()
	require.ErrorIs(t, err, ErrKeys)
	assert.True(t, a.Free(17))
	assert.False(t, a.Free(17))
	assert.Equal(t, 253, a.Len())
	key, err := a.Alloc()
	require.NoError(t, err)
	assert.EqualValues(t, 17, key, "the only free one")
	assert.Equal(t, 254, a.Len())
}

// TestKeysReturnLate: a freed key of a small key space is used again only after half of the space, or after all keys that were
// free.
func TestKeysReturnLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := NewKeyAllocator(1)
		require.NoError(t, err)
		held := rapid.IntRange(0, 200).Draw(t, "held")
		for range held {
			_, err := a.Alloc()
			require.NoError(t, err)
		}
		last := map[uint64]int{}
		for i := range 1000 {
			key, err := a.Alloc()
			require.NoError(t, err)
			if before, again := last[key]; again {
				require.GreaterOrEqual(t, i-before, min(127, 254-held))
			}
			last[key] = i
			require.True(t, a.Free(key))
			require.Equal(t, held, a.Len())
		}
	})
}

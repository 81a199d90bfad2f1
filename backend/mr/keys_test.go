package mr

import (
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

func TestKeysRunOut(t *testing.T) {
	a, err := newKeys(1, 250)
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
	key, err := a.Alloc()
	require.NoError(t, err)
	assert.EqualValues(t, 17, key, "the only free one")
	assert.Equal(t, 254, a.Len())
}

// TestKeysReturnLate: a freed key comes back only after all others that were free then.
func TestKeysReturnLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := newKeys(1, rapid.Uint64().Draw(t, "start"))
		require.NoError(t, err)
		held := rapid.IntRange(0, 100).Draw(t, "held")
		for range held {
			_, err := a.Alloc()
			require.NoError(t, err)
		}
		last := map[uint64]int{}
		for i := range 1000 {
			key, err := a.Alloc()
			require.NoError(t, err)
			if before, again := last[key]; again {
				require.GreaterOrEqual(t, i-before, 254-held)
			}
			last[key] = i
			require.True(t, a.Free(key))
		}
	})
}

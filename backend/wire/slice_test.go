package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSlices(t *testing.T) {
	const size = 3584 << 20
	r := Range{Addr: 0x7f00_0012_3456, Len: 10 << 30, Dev: 1, Mem: 2}
	slices := func() []Range {
		list, err := r.Slices(size)
		require.NoError(t, err)
		return list
	}
	list := slices()
	require.Len(t, list, 3)
	assert.Equal(t, Range{Addr: r.Addr, Len: 0x7f00_0000_0000 + size - r.Addr, Dev: 1, Mem: 2}, list[0])
	one, err := r.Slices(0)
	require.NoError(t, err)
	assert.Equal(t, []Range{r}, one)
	r.Len = size
	assert.Equal(t, []Range{r}, slices(), "the limit itself is one")
	r.Addr = 2 // so that the last slice has a byte
	r.Len = (MaxSlices - 1) * size
	_, err = r.Slices(size)
	assert.ErrorIs(t, err, ErrLimit)
	r.Len--
	assert.Equal(t, MaxSlices, len(slices()))
	r.Len = math.MaxUint64 - 1
	_, err = r.Slices(MinSlice)
	assert.ErrorIs(t, err, ErrLimit)
}

// TestSlicesProperties: every byte is in one slice, no slice is too large, all but the first begin on a page, and
// SliceOf finds the slice.
func TestSlicesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(MinSlice/SliceUnit, 100).Draw(t, "size") * SliceUnit
		r := Range{Addr: rapid.Uint64Range(0, math.MaxUint64-1<<30).Draw(t, "addr"), Len: rapid.Uint64Range(0, 30*size).Draw(t, "len")}
		list, err := r.Slices(size)
		require.NoError(t, err)
		at := r.Addr
		for i, s := range list {
			require.Equal(t, at, s.Addr)
			require.LessOrEqual(t, s.Len, size)
			again, err := s.Slices(size)
			require.NoError(t, err)
			require.Equal(t, []Range{s}, again, "a slice is not sliced again")
			if i > 0 {
				require.Zero(t, s.Addr%SliceUnit)
				require.NotZero(t, s.Len)
			}
			if len(list) > 1 {
				require.Equal(t, i, r.SliceOf(s.Addr, size))
				require.Equal(t, i, r.SliceOf(s.Addr+s.Len-1, size))
			}
			at += s.Len
		}
		require.Equal(t, r.Addr+r.Len, at)
		if len(list) > 1 {
			require.Equal(t, len(list)-1, r.SliceOf(at, size), "the end is in the last")
		}
	})
}

package ipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlace: a place is read as it was written. Nothing else is a place.
func TestPlace(t *testing.T) {
	p := Place{Abstract: []byte("\x00abcde"), File: File{1, 2}, NetNS: 1 << 40, PidNS: 3, Users: AnyUser}
	b := p.Append(nil)
	require.Len(t, b, PlaceSize)
	got, ok := Decode(append(b, 9))
	require.True(t, ok)
	require.Equal(t, p, got)
	for i, bad := range map[int]byte{0: 1, 1: 'x', 7: 1, PlaceSize - 1: 2, PlaceSize - 8: 1} {
		c := append([]byte{}, b...)
		c[i] = bad
		_, ok := Decode(c)
		require.False(t, ok, i)
	}
	_, ok = Decode(b[:PlaceSize-1])
	require.False(t, ok)
	_, ok = Decode(make([]byte, PlaceSize))
	require.False(t, ok)
}

// FuzzPlace: what Decode accepts, Append writes.
func FuzzPlace(f *testing.F) {
	p := Place{Abstract: []byte("\x00abcde"), File: File{1, 2}, NetNS: 5, PidNS: 3}
	f.Add(p.Append(nil))
	f.Add(make([]byte, PlaceSize))
	f.Add([]byte{15, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := Decode(b); ok {
			require.Equal(t, b[:PlaceSize], p.Append(nil))
			require.LessOrEqual(t, len(p.Abstract), MaxName)
		}
	})
}

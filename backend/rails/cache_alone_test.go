package rails

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAlone: a cache that shares nothing registers each range, also equal ones and those inside, and ends each once.
func TestAlone(t *testing.T) {
	f, _ := newFake()
	c := NewCache(f.Register, f.Unregister, Alone)
	var refs []*Ref[*region]
	for _, length := range []uint64{100, 100, 10} {
		refs = append(refs, acquire(t, c, 1000, length, false))
	}
	require.Len(t, f.open, 3)
	for _, r := range refs {
		outcome, err := c.Release(r)
		require.NoError(t, err)
		require.Equal(t, Closed, outcome)
		_, err = c.Release(r)
		require.ErrorIs(t, err, ErrReleased)
	}
	require.Empty(t, f.open)
	live, retired := c.Len()
	require.Zero(t, live+retired)
}

package region

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type holder int

func (holder) Revoke([]uint64) <-chan struct{}                 { return nil }
func (holder) Renew([]uint64) <-chan struct{}                  { return nil }
func (holder) Late()                                           {}
func (holder) AwaitRevoked(<-chan struct{}, time.Time, string) {}
func (holder) KeySalt() [16]byte                               { return [16]byte{} }
func region(index, gen uint64) (id uint64)                     { return gen<<32 | index }

// Who holds the keys of a region is known until the region ends. A session with the keys of all regions costs a bit for
// each of them.
func TestHolders(t *testing.T) {
	const regions = 100_000
	h := newHolders()
	for i := range uint64(regions) {
		h.note(holder(1), region(i, 1))
		h.note(holder(1), region(i, 1))
	}
	h.note(holder(2), region(70, 1))
	h.note(holder(2), region(3, 1))
	require.Less(t, 8*cap(h.list[0].bits), 2*regions/8)
	require.ElementsMatch(t, []Holder{holder(1), holder(2)}, h.take(region(70, 1)))
	require.Empty(t, h.take(region(70, 2)), "another region in its place")
	require.Empty(t, h.take(region(regions+64, 1)))
	h.drop(holder(3)) // unknown
	h.drop(holder(1))
	require.Empty(t, h.take(region(5, 1)))
	require.Equal(t, []Holder{holder(2)}, h.take(region(3, 1)))
	h.note(holder(2), region(3, 2))
	h.note(holder(4), region(3, 2))
	require.Equal(t, []Holder{holder(2), holder(4)}, h.take(region(3, 2)))
	h.drop(holder(2))
	h.drop(holder(4))
	require.Empty(t, h.list)
	require.Empty(t, h.place)
}

package staging

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/quota"
	"gorail/backend/region"
	"gorail/backend/stage"
	"gorail/backend/wire"
)

// initiator is a peer with rings.
type initiator struct{ closed []string }

func (*initiator) Agent() string         { return "bob" }
func (*initiator) Owner() quota.Owner    { return quota.Owner{} }
func (i *initiator) Close(reason string) { i.closed = append(i.closed, reason) }
func (*initiator) Staged(wire.Frame)     {}

// A peer gets a ring of each kind with the least staging_memory that the option takes.
func TestLeastMemory(t *testing.T) {
	const size = 64 << 20
	for _, device := range []int{stage.Host, 0} {
		s := &Side{Size: size, Memory: 2 * size, Log: slog.New(slog.DiscardHandler), Limits: &limits.Counts{}, Regions: &region.Registry{}}
		require.NoError(t, s.takeRoom(&initiator{}, device), "device %d", device)
	}
	s := &Side{Size: size}
	require.EqualValues(t, 2*size/slotsOfRing, s.slotSize(0), "without the option a ring on a GPU is twice as large")
	s.Memory = 4 * size
	require.EqualValues(t, 2*size/slotsOfRing, s.slotSize(0))
}

package tcp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/conform"
)

// openLoopback opens the loopback interface.
func openLoopback(t *testing.T) provider.Rail {
	t.Helper()
	p := New(Options{})
	list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{Fabric}, Devices: []string{"lo"}})
	require.NoError(t, err)
	require.Len(t, list, 1)
	r, err := p.Open(list[0])
	require.NoError(t, err)
	return r
}

func TestConform(t *testing.T) {
	t.Parallel()
	conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, Numbered: true}), openLoopback)
}

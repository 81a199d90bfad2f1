package shm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/conform"
)

func open(t *testing.T, o Options) provider.Rail {
	p := New(o)
	devs, err := p.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	r, err := p.Open(devs[0])
	require.NoError(t, err)
	return r
}

// TestConform runs the conformance tests with copying threads and with polling threads alone.
func TestConform(t *testing.T) {
	for name, threads := range map[string]int{"threads": 2, "alone": 0} {
		t.Run(name, func(t *testing.T) {
			conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, VirtAddr: true, AnyAccess: true}), func(t *testing.T) provider.Rail { return open(t, Options{Threads: threads}) })
		})
	}
}

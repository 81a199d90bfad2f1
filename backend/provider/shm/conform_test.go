package shm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/conform"
)

func open(t testing.TB, o Options) provider.Rail {
	p := New(o)
	devs, err := p.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	r, err := p.Open(devs[0])
	require.NoError(t, err)
	return r
}

// TestConform runs the conformance tests with copying threads, with polling threads alone, and through rings.
func TestConform(t *testing.T) {
	for name, o := range map[string]Options{"threads": {Threads: 2}, "alone": {}, "ring": {Rings: true}, "small ring": {Rings: true, RingSize: 1}} {
		t.Run(name, func(t *testing.T) {
			conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, VirtAddr: true, AnyAccess: !o.Rings}), func(t *testing.T) provider.Rail { return open(t, o) })
		})
	}
}

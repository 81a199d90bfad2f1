package ofi

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/test/conform"
)

// openLoopback opens the loopback device of a fabric, or skips the test.
func openLoopback(t *testing.T, fabric string) provider.Rail {
	t.Helper()
	p := New(Options{LibraryPath: testLibrary()})
	devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{fabric}, Devices: []string{"lo", "shm"}})
	if errors.Is(err, provider.ErrNoDevice) || errors.Is(err, provider.ErrNoLibrary) {
		t.Skipf("no %s here: %v", fabric, err)
	}
	require.NoError(t, err)
	rail, err := p.Open(devs[0])
	require.NoError(t, err)
	return rail
}

// traits returns the properties that libfabric reports for the fabric.
func traits(r provider.Rail) conform.Traits {
	return conform.Traits{DeliveryComplete: capsOf(r).DeliveryComplete, VirtAddr: capsOf(r).VirtAddr}
}

func capsOf(r provider.Rail) caps {
	if g, ok := r.(*gpuRail); ok {
		return g.caps
	}
	return r.(*rail).caps
}

// The layered and the shared-memory provider have one endpoint for all peers. Only their data transfer is tested.
func TestTrafficSharedEndpoint(t *testing.T) {
	for _, fabric := range []string{"tcp;ofi_rxm", "shm"} {
		t.Run(fabric, func(t *testing.T) {
			lib, err := libfabric.Load(New(Options{LibraryPath: testLibrary()}).path)
			if err == nil && fabric == "shm" && lib.Version() >= 2<<16 && lib.Version() <= 2<<16|3 {
				t.Skip("shm of libfabric 2.0 to 2.3 crashes where both ends are in one process: docs/fabrics.md")
			}
			conform.RunTraffic(t, traits, func(t *testing.T) provider.Rail { return openLoopback(t, fabric) })
		})
	}
}

// TestConformFabric is for machines with the fabric: GORAIL_TEST_FABRIC=efa (or cxi, ...), GORAIL_TEST_LIBFABRIC for
// the library. Both ends use its first device.
func TestConformFabric(t *testing.T) {
	name := os.Getenv("GORAIL_TEST_FABRIC")
	if name == "" {
		t.Skip("GORAIL_TEST_FABRIC is not set")
	}
	open := func(t *testing.T) provider.Rail {
		p := New(Options{LibraryPath: testLibrary()})
		devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{name}})
		require.NoError(t, err)
		rail, err := p.Open(devs[0])
		require.NoError(t, err)
		return rail
	}
	rail := open(t)
	c := capsOf(rail)
	require.NoError(t, rail.Close())
	if c.SharedEndpoint {
		conform.RunTraffic(t, traits, open)
	} else {
		conform.Run(t, traits, open)
	}
}

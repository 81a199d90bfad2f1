package ofi

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
)

// testLibrary selects another libfabric for the tests: GORAIL_TEST_LIBFABRIC=/path/libfabric.so.1.
func testLibrary() string { return os.Getenv("GORAIL_TEST_LIBFABRIC") }

func TestMissingLibrary(t *testing.T) {
	_, err := New(Options{LibraryPath: "/nonexistent/libfabric.so.1"}).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrNoLibrary)
	for _, part := range []string{"/nonexistent/libfabric.so.1", "libfabric1", "libfabric_path", "No such file"} {
		require.ErrorContains(t, err, part)
	}
}

func TestNotLibfabric(t *testing.T) {
	_, err := New(Options{LibraryPath: "libm.so.6"}).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrNoLibrary)
	require.ErrorContains(t, err, "fi_getinfo@FABRIC_1.3")
}

func TestUnknownFabric(t *testing.T) {
	p := New(Options{LibraryPath: testLibrary()})
	_, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"nosuch"}})
	require.ErrorIs(t, err, provider.ErrNoDevice)
	require.ErrorContains(t, err, `"nosuch"`)
	require.ErrorContains(t, err, "providers:")
}

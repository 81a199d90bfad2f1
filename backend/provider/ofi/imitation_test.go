package ofi

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/test/conform"
	"gorail/test/fabric"
)

// imitation opens rails of a fabric that test/fabric imitates. Breaches of the fabric's rules fail the test at its end.
// The library reads its switches at first use, so each test gets its own copy.
func imitation(t *testing.T, kind string, seed int64, switches ...string) conform.Opener {
	open, breaches := breaking(t, kind, seed, switches...)
	t.Cleanup(func() { require.Empty(t, breaches()) })
	return open
}

// breaking is imitation for a test that breaks rules. It also returns a function that reads the breaches.
func breaking(t *testing.T, kind string, seed int64, switches ...string) (conform.Opener, func() []string) {
	path, breaches := fabric.Build(t), filepath.Join(t.TempDir(), "breaches")
	t.Setenv(fabric.EnvConfig, fabric.Config(kind, 1, seed, switches...))
	t.Setenv(fabric.EnvBreaches, breaches)
	prov, _, _ := strings.Cut(kind, "-")
	return func(t *testing.T) provider.Rail {
		t.Helper()
		p := New(Options{LibraryPath: path})
		devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{prov}})
		require.NoError(t, err)
		rail, err := p.Open(devs[0])
		require.NoError(t, err)
		return rail
	}, func() []string { return fabric.Breaches(t, breaches) }
}

// The devices of peers get the access that a registration has: these fabrics refuse the rest.
func TestAccessImitated(t *testing.T) {
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		t.Run(kind, func(t *testing.T) {
			open, breaches := breaking(t, kind, 1)
			conform.RunAccess(t, traits, open)
			var rules []string
			for _, line := range breaches() {
				rule, what, _ := strings.Cut(line, ": ")
				op, _, _ := strings.Cut(what, " ")
				rules = append(rules, strings.Fields(rule)[0]+" "+op)
			}
			require.Equal(t, []string{"access write", "access read"}, rules)
		})
	}
}

// Switches that make these fabrics keep what package conform tests beyond their guarantees.
const (
	inOrder  = "order_sas=1" // conform.Messages: messages fill receives in the order of sending
	unmapped = "allocated=0" // conform.ManyRegions: memory that is not mapped can be registered
	zeroes   = "av_check=1"  // conform.Addresses: fi_av_insert refuses an address of zeros
)

func TestTrafficImitated(t *testing.T) {
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		seeds := int64(2)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				open := imitation(t, kind, seed, inOrder, unmapped, zeroes)
				conform.RunTraffic(t, traits, open)
			})
		}
	}
}

// An opaque address that begins like a struct sockaddr_in is not treated as one.
func TestAddressLikeIP(t *testing.T) {
	rail := imitation(t, "cxi", 1, "addr_ip=1")(t)
	defer rail.Close()
	ep, err := rail.OpenEndpoint()
	require.NoError(t, err)
	defer ep.Close()
	require.True(t, libfabric.Addr(ep.Addr()).IsValid(), "it looks like one")
	require.Empty(t, rail.Device().Addr)
	require.NoError(t, ep.Connect(ep.Addr()))
}

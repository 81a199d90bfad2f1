package verbs

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/conform"
)

// TestConform needs two ports of this machine that reach each other. GORAIL_TEST_VERBS says that the machine has them.
// test/rdma runs it over the kernel's soft RoCE.
func TestConform(t *testing.T) {
	if os.Getenv("GORAIL_TEST_VERBS") == "" {
		t.Skip("GORAIL_TEST_VERBS is not set")
	}
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	n := 0
	conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, VirtAddr: true, WriteReads: true}), func(t *testing.T) provider.Rail {
		devs, err := New(Options{IB: opts.IB}).Discover(context.Background(), provider.Filter{})
		require.NoError(t, err, "GORAIL_TEST_VERBS is set")
		rail, err := New(Options{IB: opts.IB}).Open(devs[n%len(devs)])
		n++
		require.NoError(t, err)
		return rail
	})
}

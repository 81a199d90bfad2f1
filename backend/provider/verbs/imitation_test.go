package verbs

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/conform"
	imitation "gorail/test/verbs"
)

// options returns the plugin's defaults over the imitated library.
func options(t testing.TB, lib *imitation.Lib, ethernet bool) Options {
	t.Helper()
	opts, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	eth := 0
	if ethernet {
		eth = 1
	}
	lib.Set("ethernet", eth)
	return Options{LibraryPath: lib.Path, Sys: imitation.Sys(4, 4, ethernet), IB: opts.IB}
}

// opener returns a function that opens the devices in turn.
func opener(o Options) conform.Opener {
	n := 0
	return func(t *testing.T) provider.Rail {
		t.Helper()
		devs, err := New(o).Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		rail, err := New(o).Open(devs[n%len(devs)])
		n++
		require.NoError(t, err)
		return rail
	}
}

func TestConformImitated(t *testing.T) {
	type set map[string]int
	for name, c := range map[string]struct {
		ethernet, old bool
		set           set
	}{
		"RoCE":                      {ethernet: true, set: set{"devices": 2}},
		"InfiniBand, removes":       {set: set{"devices": 2, "ports": 2, "remove": 1}},
		"async, removes, no inline": {ethernet: true, set: set{"async": 1, "remove": 1, "max_inline": 0}},
		"async InfiniBand":          {set: set{"async": 1}},
		"delay, old library":        {ethernet: true, old: true, set: set{"delay": 3}},
		"small queues":              {ethernet: true, set: set{"max_qp_wr": 40, "max_cqe": 200}},
		"tiny queues, async":        {ethernet: true, set: set{"max_qp_wr": 4, "max_cqe": 16, "async": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			build := imitation.Build
			if c.old {
				build = imitation.BuildOld
			}
			lib := build(t)
			for k, v := range c.set {
				lib.Set(k, v)
			}
			conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, VirtAddr: true, WriteReads: true}), opener(options(t, lib, c.ethernet)))
		})
	}
}

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

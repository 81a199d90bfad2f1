package ofi

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/fabric"
)

// tuned opens the first device of an imitated fabric and returns the settings that the fabric recorded.
func tuned(t *testing.T, kind, switches string, tune Tuning) (provider.Rail, []string, error) {
	path, dir := fabric.Build(t), t.TempDir()
	opened, breaches := filepath.Join(dir, "opened"), filepath.Join(dir, "breaches")
	t.Setenv(fabric.EnvConfig, strings.TrimSuffix("kind="+kind+","+switches, ","))
	t.Setenv(fabric.EnvOpened, opened)
	t.Setenv(fabric.EnvBreaches, breaches)
	prov, _, _ := strings.Cut(kind, "-")
	p := New(Options{LibraryPath: path, Tuning: tune})
	devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{prov}})
	if err != nil {
		return nil, nil, err
	}
	rail, err := p.Open(devs[0])
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() {
		require.NoError(t, rail.Close())
		require.Empty(t, fabric.Breaches(t, breaches))
	})
	return rail, fabric.Opened(t, opened), nil
}

// Every setting reaches the provider, and nothing else is set.
func TestTuningArrives(t *testing.T) {
	for name, c := range map[string]struct {
		kind, switches string
		tune           Tuning
		want           string
	}{
		"nothing":   {"cxi", "", Tuning{}, "cxi0 tclass=0 key=0:0 tx=512 rx=1024 cq=65536 threading=safe"},
		"efa":       {"efa", "", Tuning{}, "efa0 tclass=0 key=0:0 tx=512 rx=1024 cq=32768 threading=safe"},
		"class":     {"efa", "", Tuning{TrafficClass: "low_latency"}, "efa0 tclass=0x201 key=0:0 tx=512 rx=1024 cq=32768 threading=safe"},
		"dedicated": {"cxi", "", Tuning{TrafficClass: "dedicated_access"}, "cxi0 tclass=0x202 key=0:0 tx=512 rx=1024 cq=65536 threading=safe"},
		"key":       {"cxi", "service=5,vni=65535", Tuning{Keys: []Key{{"", 5, 65535}}}, "cxi0 tclass=0 key=5:65535 tx=512 rx=1024 cq=65536 threading=safe"},
		"own key":   {"cxi", "service=7,vni=2", Tuning{Keys: []Key{{"", 5, 1}, {"cxi0", 7, 2}, {"cxi1", 8, 3}}}, "cxi0 tclass=0 key=7:2 tx=512 rx=1024 cq=65536 threading=safe"},
	} {
		t.Run(name, func(t *testing.T) {
			rail, opened, err := tuned(t, c.kind, c.switches, c.tune)
			require.NoError(t, err)
			require.Equal(t, []string{c.want}, opened)
			require.Empty(t, rail.Notes())
		})
	}
}

// A setting that the fabric refuses is an error that names the option.
func TestTuningRefused(t *testing.T) {
	for name, c := range map[string]struct {
		kind, switches string
		tune           Tuning
		says           []string
	}{
		"class":         {"cxi", "classes=13", Tuning{TrafficClass: "low_latency"}, []string{"fi_enable", "traffic_class=low_latency"}},
		"service":       {"cxi", "service=5", Tuning{Keys: []Key{{"", 6, 1}}}, []string{"fi_domain", "cxi_auth_key=6:1", "service 6 of cxi0"}},
		"network":       {"cxi", "vni=9", Tuning{Keys: []Key{{"cxi0", 6, 1}}}, []string{"fi_domain", "cxi_auth_key=6:1", "VNI 1"}},
		"no delivery":   {"cxi", "delivery=0", Tuning{}, []string{"cxi/cxi0", "FI_DELIVERY_COMPLETE", "option provider"}},
		"no such class": {"cxi", "", Tuning{TrafficClass: "fast"}, []string{"traffic_class=fast"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := tuned(t, c.kind, c.switches, c.tune)
			require.ErrorIs(t, err, provider.ErrUnusable)
			for _, part := range c.says {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// Settings without effect on the fabric, and emulated operations, become notes.
func TestNotes(t *testing.T) {
	for name, c := range map[string]struct {
		kind, switches string
		tune           Tuning
		want           string
	}{
		"class of cxi on efa": {"efa", "", Tuning{TrafficClass: "bulk_data"}, "traffic_class=bulk_data has no effect on efa"},
		"old library":         {"efa", "version=0x10016", Tuning{TrafficClass: "low_latency"}, "before libfabric 2.0; this is 1.22"},
		"key on efa":          {"efa-direct", "", Tuning{Keys: []Key{{"", 5, 1}}}, "cxi_auth_key has no effect on efa"},
		"no key":              {"cxi", "", Tuning{Keys: []Key{{"cxi3", 5, 1}}}, "no key for it"},
		"no READ":             {"efa", "emulated=1", Tuning{}, "READ is emulated"},
		"no WRITE":            {"efa", "emulated=2", Tuning{}, "WRITE is emulated"},
		"no RDMA":             {"efa", "emulated=3", Tuning{}, "READ and WRITE are emulated"},
	} {
		t.Run(name, func(t *testing.T) {
			rail, _, err := tuned(t, c.kind, c.switches, c.tune)
			require.NoError(t, err)
			require.Len(t, rail.Notes(), 1)
			require.Contains(t, rail.Notes()[0], c.want)
		})
	}
	rail, _, err := tuned(t, "efa-direct", "emulated=3", Tuning{})
	require.NoError(t, err)
	require.Empty(t, rail.Notes(), "this fabric has nothing but RDMA")
}

package nixlapi_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
)

// BenchmarkRegions takes 1,000 regions of 1 MiB through NIXL: registered in one call, exported, loaded by a second agent of the process,
// forgotten there and deregistered. It reports the median time of each step for one region. GORAIL_TEST_BACKEND=UCX measures the wheel's
// plugin.
func BenchmarkRegions(b *testing.B) {
	const n, size = 1000, 1 << 20
	env := testenv.Need(b)
	b.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(b, err)
	one, _, _ := prepareAgent(b, lib, "one", 4096)
	two, there, _ := prepareAgent(b, lib, "two", 4096)
	mem, err := nixlapi.Alloc(n * size)
	require.NoError(b, err)
	list := make([]nixlapi.Desc, n)
	for i := range list {
		list[i] = mem.Desc(uint64(i)*size, size)
	}
	took := map[string][]time.Duration{}
	step := func(name string, f func() error) {
		start := time.Now()
		err := f()
		took[name] = append(took[name], time.Since(start))
		require.NoError(b, err)
	}
	for b.Loop() {
		var md []byte
		step("register", func() error { return two.Register(nixlapi.DRAM, list, there) })
		step("export", func() (err error) {
			md, err = two.Metadata()
			return err
		})
		step("load", func() error {
			_, err := one.Load(md)
			return err
		})
		step("forget", func() error { return one.Invalidate("two") })
		step("deregister", func() error { return two.Deregister(nixlapi.DRAM, list, there) })
	}
	for name, t := range took {
		slices.Sort(t)
		b.ReportMetric(float64(t[len(t)/2].Nanoseconds())/n, "ns-"+name)
	}
	b.ReportMetric(0, "ns/op")
}

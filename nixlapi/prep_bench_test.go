package nixlapi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
)

// BenchmarkPrepare is the time that NIXL and its backend take to prepare and release a request, per descriptor: the median, and
// the best. make: make_xfer_req, over prepared lists of blocks. create: create_xfer_req.
func BenchmarkPrepare(b *testing.B) {
	env := testenv.Need(b)
	b.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	lib, err := nixlapi.Open(env.WheelDir)
	require.NoError(b, err)
	const most, block = 1_000_000, 64
	one, here, mine := prepareAgent(b, lib, "one", 2*most*block)
	two, _, theirs := prepareAgent(b, lib, "two", 2*most*block)
	md, err := two.Metadata()
	require.NoError(b, err)
	_, err = one.Load(md)
	require.NoError(b, err)
	opts := nixlapi.XferOpts{Backend: here, NoMerge: true}
	for _, n := range []int{1000, 10_000, 80_000, most} {
		local, remote := make([]nixlapi.Desc, n), make([]nixlapi.Desc, n)
		random := make([]int32, n)
		for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
			random[i] = int32(at)
			local[i], remote[i] = mine.Desc(2*uint64(i)*block, block), theirs.Desc(2*uint64(i)*block, block)
		}
		l, err := one.PrepDlist(nixlapi.LocalSide, nixlapi.DRAM, local, here)
		require.NoError(b, err)
		r, err := one.PrepDlist("two", nixlapi.DRAM, remote, here)
		require.NoError(b, err)
		b.Run(fmt.Sprintf("make/n=%d", n), func(b *testing.B) {
			prepare(b, n, func() (*nixlapi.Xfer, error) { return one.MakeXfer(nixlapi.Write, l, random, r, random, opts) })
		})
		b.Run(fmt.Sprintf("create/n=%d", n), func(b *testing.B) {
			prepare(b, n, func() (*nixlapi.Xfer, error) {
				return one.CreateXfer(nixlapi.Write, nixlapi.DRAM, local, remote, "two", opts)
			})
		})
		require.NoError(b, l.Release())
		require.NoError(b, r.Release())
	}
}

func prepareAgent(b *testing.B, lib *nixlapi.Lib, name string, size uint64) (*nixlapi.Agent, *nixlapi.Backend, *nixlapi.Buffer) {
	env := testenv.Need(b)
	a, err := lib.NewAgent(name, nixlapi.Config{ProgThread: true})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, a.Close()) })
	params, _, err := a.PluginParams(env.Backend)
	require.NoError(b, err)
	back, err := a.CreateBackend(env.Backend, params)
	require.NoError(b, err)
	m, err := nixlapi.Alloc(int(size))
	require.NoError(b, err)
	require.NoError(b, a.Register(nixlapi.DRAM, []nixlapi.Desc{m.Desc(0, size)}, back))
	return a, back, m
}

func prepare(b *testing.B, n int, request func() (*nixlapi.Xfer, error)) {
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		x, err := request()
		if err == nil {
			err = x.Release()
		}
		took = append(took, time.Since(start))
		require.NoError(b, err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/float64(n), "ns/desc")
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(n), "best-ns/desc")
	b.ReportMetric(0, "ns/op")
}

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

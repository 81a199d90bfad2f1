package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkFirstUse takes apart the time from the creation of an agent with its backend to the end of its first transfer of 4 KiB, and
// of the second one. The processes are new, and their memory is there before. GPU memory needs GORAIL_TEST_CUDA.
// GORAIL_TEST_BACKEND=UCX measures the wheel's plugin (GORAIL_PLUGIN_DIR: the wheel's own folder):
//
//	go test ./test/e2e -run NONE -bench FirstUse -benchtime 5x
func BenchmarkFirstUse(b *testing.B) {
	for _, c := range []struct {
		name, provider, tls string
		vram                bool
	}{{"sm,host", "sm", "", false}, {"tcp,host", "tcp", "tcp", false}, {"auto,host", "auto", "", false}, {"sm,VRAM", "sm", "", true}, {"tcp,VRAM", "tcp", "tcp,cuda_copy", true}} {
		b.Run(c.name, func(b *testing.B) {
			if c.vram && os.Getenv("GORAIL_TEST_CUDA") == "" {
				b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
			}
			o := worker.Options{Env: testenv.Need(b)}
			if c.vram {
				o = gpuHost(b)
			}
			o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+c.provider)
			if c.tls != "" {
				o.Setenv = append(o.Setenv, "UCX_TLS="+c.tls, "UCX_NET_DEVICES=lo", "GORAIL_DEVICES=lo")
			}
			took := map[string][]int64{}
			for b.Loop() {
				firstUse(b, o, c.vram, took)
			}
			for step, t := range took {
				b.ReportMetric(median(t)/1e6, "ms-"+step)
			}
		})
	}
}

// firstUse adds the nanoseconds of each step to took.
func firstUse(b *testing.B, o worker.Options, vram bool, took map[string][]int64) {
	const size = 2 << 20
	var here, there *worker.GPUMem
	if vram {
		here, there = gpuMem(0), gpuMem(1)
		if os.Getenv("GORAIL_TEST_GPUS") == "1" {
			there = gpuMem(0)
		}
	}
	wi, wt := process(b, o), process(b, o)
	alloc := func(w *worker.Worker, m *worker.GPUMem) *worker.Buf {
		if m == nil {
			return w.Alloc(size, hostmem.Anon)
		}
		return w.AllocGPU(size, *m)
	}
	mine, theirs := alloc(wi, here), alloc(wt, there)
	mine.Fill(seedA)
	theirs.Fill(seedB)
	begun := time.Now()
	last := begun
	step := func(name string) {
		took[name] = append(took[name], int64(time.Since(last)))
		last = time.Now()
	}
	ini := agent(wi, o.Env, "alice")
	step("1-agent")
	tgt := agent(wt, o.Env, "bob")
	tgt.Polling(true)
	step("2-target-agent")
	require.NoError(b, ini.Register(mine.All()))
	step("3-register")
	require.NoError(b, tgt.Register(theirs.All()))
	step("4-target-register")
	ini.Learn(tgt)
	step("5-metadata")
	spec := worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(0, 4096), Remote: theirs.Span(0, 4096), Peer: "bob"}
	x := ini.Xfer(spec)
	step("6-request")
	x.Do(limit)
	step("7-first-transfer")
	took["8-all"] = append(took["8-all"], int64(time.Since(begun)))
	x.Do(limit)
	step("9-second-transfer")
	require.NoError(b, x.Release())
	require.NoError(b, ini.Close())
	require.NoError(b, tgt.Close())
	require.NoError(b, wi.Exit())
	require.NoError(b, wt.Exit())
}

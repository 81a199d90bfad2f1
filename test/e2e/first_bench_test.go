package e2e

import (
	"os"
	"slices"
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
			var s steps
			for b.Loop() {
				firstUse(b, o, c.vram, &s)
			}
			s.report(b)
		})
	}
}

// steps are the times of the steps of a benchmark, of all its rounds.
type steps struct {
	took map[string][]int64 // ns
	last time.Time          // the end of the step before
}

// begin starts a step that does not begin where the one before ended.
func (s *steps) begin() { s.last = time.Now() }

// end ends a step, and begins the next one.
func (s *steps) end(name string) {
	s.add(name, time.Since(s.last))
	s.begin()
}

func (s *steps) add(name string, took time.Duration) {
	if s.took == nil {
		s.took = map[string][]int64{}
	}
	s.took[name] = append(s.took[name], int64(took))
}

// report reports the medians in milliseconds.
func (s *steps) report(b *testing.B) {
	for step, t := range s.took {
		b.ReportMetric(median(t)/1e6, "ms-"+step)
	}
}

// firstUse adds the times of one round.
func firstUse(b *testing.B, o worker.Options, vram bool, s *steps) {
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
	s.begin()
	ini := agent(wi, o.Env, "alice")
	s.end("1-agent")
	tgt := agent(wt, o.Env, "bob")
	tgt.Polling(true)
	s.end("2-target-agent")
	require.NoError(b, ini.Register(mine.All()))
	s.end("3-register")
	require.NoError(b, tgt.Register(theirs.All()))
	s.end("4-target-register")
	ini.Learn(tgt)
	s.end("5-metadata")
	spec := worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(0, 4096), Remote: theirs.Span(0, 4096), Peer: "bob"}
	x := ini.Xfer(spec)
	s.end("6-request")
	x.Do(limit)
	s.end("7-first-transfer")
	s.add("8-all", time.Since(begun))
	x.Do(limit)
	s.end("9-second-transfer")
	require.NoError(b, x.Release())
	require.NoError(b, ini.Close())
	require.NoError(b, tgt.Close())
	require.NoError(b, wi.Exit())
	require.NoError(b, wt.Exit())
}

func median(ns []int64) float64 {
	slices.Sort(ns)
	return float64(ns[len(ns)/2])
}

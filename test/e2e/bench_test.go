package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
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
	exit(b, wi, wt)
}

func median(ns []int64) float64 {
	slices.Sort(ns)
	return float64(ns[len(ns)/2])
}

// BenchmarkMixed has one WRITE of 4 KiB in flight, alone and beside eight WRITEs of 64 MiB to the same peer, which are posted
// again when they have ended. One thread of the application does all of it. "own" is the provider of GORAIL_PROVIDER, by default tcp:
//
//	go test ./test/e2e -run NONE -bench Mixed -benchtime 10x
//
// Each turn measures alone, then beside. Figures are medians of the turns' percentiles, and of the turns' ratios.
func BenchmarkMixed(b *testing.B) {
	b.Run("own", func(b *testing.B) { mixed(b, pair(b)) })
	b.Run("sm", func(b *testing.B) { mixed(b, pair(b, params("provider", "sm"))) })
	b.Run("tcp,two-rails", func(b *testing.B) {
		ha, hb := hosts(b, 77, "fast0", "slow0")
		mixed(b, onRails(b, ha, hb))
	})
}

func mixed(b *testing.B, p *pairOf) {
	const bulk, small, large = 64 << 20, 4 << 10, 8
	mine, theirs := p.buffers(large * bulk)
	sm, st := p.ini.Buffer(small, seedA), p.tgt.Buffer(small, seedB)
	p.ini.Learn(p.tgt)
	var big [large]*worker.Xfer
	for i := range uint64(large) {
		big[i] = p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*bulk, bulk), Remote: theirs.Span(i*bulk, bulk), Peer: "bob"})
		big[i].Do(limit)
	}
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: sm.All(), Remote: st.All(), Peer: "bob"})
	lat := func(n int) []int64 { return x.Loop(worker.LoopArgs{N: n, Timeout: limit, Times: true}).Lat }
	of := func(all []int64, percent int) float64 {
		slices.Sort(all)
		return float64(all[len(all)*percent/100]) / 1e3
	}
	lat(2000)
	figures := map[string][]float64{}
	note := func(name string, v float64) { figures[name] = append(figures[name], v) }
	for range b.N {
		alone := lat(2000)
		free := big[0].Loop(worker.LoopArgs{N: 20, Timeout: limit, Beside: []int{big[1].ID()}}).Wall
		for _, g := range big {
			g.Post()
		}
		began, ended := time.Now(), 0
		var beside, first []int64
		for time.Since(began) < time.Second {
			more := lat(100)
			first, beside = append(first, more[0]), append(beside, more[1:]...)
			for _, g := range big {
				if g.Status() != nixlapi.InProgress {
					ended++
					g.Post()
				}
			}
		}
		took := time.Since(began)
		for _, g := range big {
			g.Wait(limit)
		}
		for _, percent := range []int{50, 99} {
			name := fmt.Sprint("us-p", percent)
			note(name+"-alone", of(alone, percent))
			note(name+"-beside", of(beside, percent))
			note(name+"-first", of(first, percent))
			note(fmt.Sprint("x-p", percent), of(beside, percent)/of(alone, percent))
		}
		note("GB/s-alone", 20*bulk/free.Seconds()/1e9)
		note("GB/s-beside", float64(ended)*bulk/took.Seconds()/1e9)
	}
	for name, list := range figures {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name)
	}
	b.ReportMetric(0, "ns/op")
	require.NoError(b, p.ini.Exit())
}

// BenchmarkRails transfers 16 MiB over all of several shaped rails, and over the first rail alone:
//
//	go test ./test/e2e -run NONE -bench Rails -benchtime 5x
//
// With GORAIL_TEST_BACKEND=UCX it measures the wheel's UCX with as many rails.
func BenchmarkRails(b *testing.B) {
	const size = 16 << 20
	for _, mbit := range [][]uint64{{1000, 1000}, {1000, 500}, {250, 250, 250, 250}} {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			b.Run(fmt.Sprintf("%v/%s", mbit, op), func(b *testing.B) {
				var rate [2]float64
				for i, devices := range []string{"rail0", "rail*"} {
					ha, hb := rails(b, mbit...)
					p := benchOn(b, ha, hb, devices, len(mbit))
					mine, theirs := p.buffers(size)
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
					x.Do(limit)
					x.Do(limit)
					from := map[nixlapi.Op]*host{nixlapi.Write: ha, nixlapi.Read: hb}[op]
					var before, sent []uint64
					for k := range mbit {
						before = append(before, from.Sent(fmt.Sprint("rail", k)))
					}
					began := time.Now()
					for range b.N {
						x.Do(limit)
					}
					rate[i] = float64(b.N) * size / time.Since(began).Seconds() / 1e6
					var sum uint64
					for k := range mbit {
						n := from.Sent(fmt.Sprint("rail", k)) - before[k]
						sent, sum = append(sent, n), sum+n
					}
					for k, n := range sent {
						if i == 1 {
							b.ReportMetric(100*float64(n)/float64(sum), fmt.Sprintf("%%rail%d", k))
						}
					}
					exit(b, p.ini, p.tgt)
				}
				b.ReportMetric(rate[0], "MB/s-one")
				b.ReportMetric(rate[1], "MB/s-all")
				b.ReportMetric(rate[1]/rate[0], "x-one")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func benchOn(b *testing.B, ha, hb *host, devices string, n int) *pairOf {
	if testenv.Need(b).Backend == "GORAIL" {
		return onRails(b, ha, hb, "devices", devices)
	}
	names := []string{"rail0"}
	for i := 1; i < n && devices != "rail0"; i++ {
		names = append(names, fmt.Sprint("rail", i))
	}
	b.Setenv("UCX_TLS", "tcp")
	b.Setenv("UCX_NET_DEVICES", strings.Join(names, ","))
	for _, v := range []string{"UCX_MAX_RNDV_RAILS", "UCX_MAX_RNDV_LANES", "UCX_MAX_EAGER_RAILS", "UCX_MAX_EAGER_LANES"} {
		b.Setenv(v, fmt.Sprint(len(names)))
	}
	return onRails(b, ha, hb)
}

// BenchmarkRegister registers 1,000 regions of 1 MiB in one call, and GPU memory of 1,000 VMM handles as one region. It reports the
// times of the registration, of the metadata and its loading at the peer, of the first transfer of all, of the second one, and of the
// deregistration. GPU memory needs GORAIL_TEST_CUDA. GORAIL_TEST_BACKEND=UCX measures the wheel's plugin:
//
//	go test ./test/e2e -run NONE -bench Register -benchtime 3x
func BenchmarkRegister(b *testing.B) {
	const n, mib = 1000, 1 << 20
	for _, c := range []struct {
		name  string
		mem   *worker.GPUMem
		size  uint64
		whole bool
	}{{"host", nil, n * mib, false}, {"cudaMalloc", gpuMem(0), n * mib, false}, {"VMM", &worker.GPUMem{Handles: n}, n * 2 * mib, true}} {
		b.Run(fmt.Sprint(c.name, ",whole=", c.whole), func(b *testing.B) {
			o := worker.Options{Env: testenv.Need(b)}
			if c.mem != nil {
				if os.Getenv("GORAIL_TEST_CUDA") == "" {
					b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
				}
				o = gpuHost(b)
			}
			ini, tgt := agent(process(b, o), o.Env, "alice"), agent(process(b, o), o.Env, "bob")
			tgt.Polling(true)
			alloc := func(w *worker.Worker) *worker.Buf {
				if c.mem == nil {
					return w.Alloc(c.size, hostmem.Anon)
				}
				return w.AllocGPU(c.size, *c.mem)
			}
			mine, theirs := alloc(ini.Worker), alloc(tgt.Worker)
			sides := func(m *worker.Buf) (all []worker.Side) {
				if c.whole {
					return []worker.Side{m.All()}
				}
				for i := range uint64(n) {
					all = append(all, m.Span(i*mib, mib))
				}
				return all
			}
			var s steps
			for b.Loop() {
				s.begin()
				require.NoError(b, tgt.Register(sides(theirs)...))
				s.end("1-register")
				require.NoError(b, ini.Register(sides(mine)...))
				s.end("2-register-initiator")
				ini.Learn(tgt)
				s.end("3-metadata")
				l := worker.Layout{Len: 64 << 10, Stride: mib, Count: n}
				x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.At(l), Remote: theirs.At(l), Peer: "bob"})
				x.Do(long)
				s.end("4-first-transfer")
				x.Do(long)
				s.end("5-second-transfer")
				require.NoError(b, x.Release())
				require.NoError(b, ini.Invalidate("bob"))
				s.begin()
				require.NoError(b, tgt.Deregister(sides(theirs)...))
				s.end("6-deregister")
				require.NoError(b, ini.Deregister(sides(mine)...))
			}
			s.report(b)
			_ = ini.Close()
			_ = tgt.Close()
		})
	}
}

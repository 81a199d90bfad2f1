package e2e

import (
	"fmt"
	"os"
	"testing"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkVRAM transfers between two GPUs, or within one GPU with GORAIL_TEST_GPUS=1. The memory is of cudaMalloc, or of VMM
// handles with GORAIL_TEST_VMM=1 (private: handles that cannot be shared); GORAIL_TEST_WALLS=pods puts the agents into two pods. It reports the median times of the
// post and of the transfer. With GORAIL_TEST_BACKEND=UCX it measures the wheel's plugin:
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./test/e2e -run NONE -bench VRAM -benchtime 1x
func BenchmarkVRAM(b *testing.B) {
	if os.Getenv("GORAIL_TEST_CUDA") == "" {
		b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
	}
	const room = 1 << 30
	o := gpuHost(b)
	far := 1
	if os.Getenv("GORAIL_TEST_GPUS") == "1" {
		far = 0
	}
	for _, on := range []bool{false, true} {
		ini, tgt := agent(process(b, o), o.Env, "alice", progress(on)), agent(process(b, o), o.Env, "bob", progress(on))
		tgt.Polling(true)
		kind := func(n int) worker.GPUMem { return device(n) }
		if os.Getenv("GORAIL_TEST_VMM") != "" {
			private := os.Getenv("GORAIL_TEST_VMM") == "private" // no other process can map it: bounce buffers
			kind = func(n int) worker.GPUMem { return worker.GPUMem{Device: n, Handles: 4, Private: private} }
		}
		mine, theirs := ini.GPUBuffer(room, seedA, kind(0)), tgt.GPUBuffer(room, seedB, kind(far))
		ini.Learn(tgt)
		for _, s := range []struct {
			n     int
			block uint64
			runs  int
		}{{1, 4 << 10, 500}, {1, 1 << 20, 300}, {1, 64 << 20, 50}, {1, 1 << 30, 10}, {64, 8 << 10, 300}, {10_000, 1 << 10, 100},
			{10_000, 8 << 10, 60}, {100_000, 8 << 10, 20}} {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				b.Run(fmt.Sprintf("progress=%v/%dx%d/%s", on, s.n, s.block, op), func(b *testing.B) {
					if testenv.Load().Backend == "UCX" && s.n >= 10_000 {
						s.runs = 5
					}
					measure(b, ini, op, mine, theirs, s.n, s.block, s.runs)
				})
			}
		}
		_ = ini.Close()
		_ = tgt.Close()
	}
}

// measure posts a transfer of n blocks, in a random order of each side, and reports the median times of the post and of
// the transfer. It posts it runs times in each iteration.
func measure(b *testing.B, ini *worker.Agent, op nixlapi.Op, mine, theirs *worker.Buf, n int, block uint64, runs int) {
	la := worker.Layout{Len: block, Stride: block, Count: n, Shuffle: 1}
	lb := worker.Layout{Len: block, Stride: block, Count: n, Shuffle: 2}
	x := ini.Xfer(worker.XferSpec{Op: op, Local: mine.At(la), Remote: theirs.At(lb), Peer: "bob"})
	x.Do(long)
	var post, lat []int64
	for b.Loop() {
		l := x.Loop(worker.LoopArgs{N: runs, Timeout: long, Times: true})
		post, lat = append(post, l.Post...), append(lat, l.Lat...)
	}
	b.ReportMetric(median(post)/1e3, "us-post")
	b.ReportMetric(median(lat)/1e3, "us-transfer")
	b.ReportMetric(float64(n)*float64(block)/median(lat), "GB/s")
	_ = x.Release()
}

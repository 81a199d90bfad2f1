package e2e

import (
	"slices"
	"testing"
	"time"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkMixed has one WRITE of 4 KiB in flight, alone and beside eight WRITEs of 64 MiB to the same peer, which are posted
// again when they have ended. One thread of the application does all of it:
//
//	go test ./test/e2e -run NONE -bench Mixed -benchtime 3x
func BenchmarkMixed(b *testing.B) {
	const bulk, small, large = 64 << 20, 4 << 10, 8
	p := pair(b)
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
	var alone, beside []int64
	var ended int
	var took, free time.Duration
	for range b.N {
		alone = append(alone, lat(2000)...)
		free += big[0].Loop(worker.LoopArgs{N: 40, Timeout: limit, Beside: []int{big[1].ID()}}).Wall
		for _, g := range big {
			g.Post()
		}
		began := time.Now()
		for time.Since(began) < 2*time.Second {
			beside = append(beside, lat(50)...)
			for _, g := range big {
				if g.Status() != nixlapi.InProgress {
					ended++
					g.Post()
				}
			}
		}
		took += time.Since(began)
		for _, g := range big {
			g.Wait(limit)
		}
	}
	of := func(all []int64, percent int) float64 { return float64(all[len(all)*percent/100]) / 1e3 }
	slices.Sort(alone)
	slices.Sort(beside)
	b.ReportMetric(of(alone, 50), "us-p50-alone")
	b.ReportMetric(of(beside, 50), "us-p50-beside")
	b.ReportMetric(of(alone, 99), "us-p99-alone")
	b.ReportMetric(of(beside, 99), "us-p99-beside")
	b.ReportMetric(of(beside, 50)/of(alone, 50), "x-alone")
	b.ReportMetric(float64(b.N)*40*bulk/free.Seconds()/1e9, "GB/s-alone")
	b.ReportMetric(float64(ended)*bulk/took.Seconds()/1e9, "GB/s-beside")
	b.ReportMetric(0, "ns/op")
}

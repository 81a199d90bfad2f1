package e2e

import (
	"slices"
	"testing"
	"time"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkMixed keeps 8 WRITEs of 4 KiB in flight, alone and beside WRITEs of 1 GiB:
//
//	go test ./test/e2e -run NONE -bench Mixed -benchtime 1x
func BenchmarkMixed(b *testing.B) {
	const bulk, small, each = 1 << 30, 4 << 10, 400
	p := pair(b)
	mine, theirs := p.buffers(bulk)
	sm, st := p.ini.Buffer(8*small, seedA), p.tgt.Buffer(8*small, seedB)
	p.ini.Learn(p.tgt)
	big := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
	var xs []*worker.Xfer
	for i := range uint64(8) {
		xs = append(xs, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: sm.Span(i*small, small), Remote: st.Span(i*small, small), Peer: "bob"}))
	}
	smalls := func(n int) (p99 int64, took time.Duration) {
		var runs []*worker.Future[worker.LoopResult]
		began := time.Now()
		for _, x := range xs {
			runs = append(runs, x.LoopAsync(worker.LoopArgs{N: n, Timeout: limit, Times: true}))
		}
		var all []int64
		for _, r := range runs {
			all = append(all, r.Wait().Lat...)
		}
		slices.Sort(all)
		return all[len(all)*99/100], time.Since(began)
	}
	rate := func(n int) float64 {
		began := time.Now()
		big.Loop(worker.LoopArgs{N: n, Timeout: limit})
		return float64(n) * bulk / time.Since(began).Seconds() / 1e9
	}
	rate(1)
	smalls(100)
	for range b.N {
		alone, _ := smalls(each)
		free := rate(3)
		done := make(chan float64)
		go func() { done <- rate(6) }()
		beside, took := smalls(each)
		_ = took
		for range 100 { // until the 1 GiB WRITEs have ended
			select {
			case busy := <-done:
				b.ReportMetric(float64(alone)/1e3, "us-p99-alone")
				b.ReportMetric(float64(beside)/1e3, "us-p99-beside")
				b.ReportMetric(float64(beside)/float64(alone), "x-alone")
				b.ReportMetric(free, "GB/s-alone")
				b.ReportMetric(busy, "GB/s-beside")
				b.ReportMetric(busy/free, "x-bulk")
				goto next
			default:
				smalls(each)
			}
		}
	next:
	}
	b.ReportMetric(0, "ns/op")
}

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkMixedRails has one WRITE of 4 KiB after the other, alone and beside two WRITEs of 64 MiB, on one and on four rails of 200 Mbit/s: the large
// ones go to the same peer over all rails, or to another over the first.
//
//	go test ./test/e2e -run NONE -bench MixedRails -benchtime 3x
//
// Milliseconds at the 50th, 90th and 99th percentile.
func BenchmarkMixedRails(b *testing.B) {
	for _, n := range []int{1, 4} {
		for _, bulkTo := range []string{"bob", "carl"} {
			b.Run(fmt.Sprintf("%d rails, large ones to %s", n, bulkTo), func(b *testing.B) { mixedRails(b, n, bulkTo) })
		}
	}
}

func mixedRails(b *testing.B, n int, bulkTo string) {
	const bulk, small = 64 << 20, 4 << 10
	ha, hb := rails(b, slices.Repeat([]uint64{200}, n)...)
	p := &pairOf{env: testenv.Need(b), ini: ha.start("alice"), tgt: hb.start("bob")}
	large := p
	if bulkTo != p.tgt.Name {
		large = &pairOf{env: p.env, ini: p.ini, tgt: hb.start(bulkTo, params("devices", "rail0"))}
		large.tgt.Polling(true)
	}
	p.tgt.Polling(true)
	from, to := p.buffers(small)
	mine, theirs := large.buffers(2 * bulk)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: from.All(), Remote: to.All(), Peer: "bob"})
	var big []*worker.Xfer
	for i := range uint64(2) {
		g := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*bulk, bulk), Remote: theirs.Span(i*bulk, bulk), Peer: bulkTo})
		g.Do(limit)
		big = append(big, g)
	}
	lat := func(n int) []int64 { return x.Loop(worker.LoopArgs{N: n, Timeout: limit, Times: true}).Lat }
	lat(200)
	var alone, beside []int64
	for range b.N {
		alone = append(alone, lat(200)...)
		for _, g := range big {
			g.Post()
		}
		for began := time.Now(); time.Since(began) < 3*time.Second; {
			beside = append(beside, lat(20)...)
			for _, g := range big {
				if g.Status() != nixlapi.InProgress {
					g.Post()
				}
			}
		}
		for _, g := range big {
			g.Wait(limit)
		}
	}
	for name, all := range map[string][]int64{"alone": alone, "beside": beside} {
		slices.Sort(all)
		for _, percent := range []int{50, 90, 99} {
			b.ReportMetric(float64(all[len(all)*percent/100])/1e6, fmt.Sprintf("ms-p%d-%s", percent, name))
		}
	}
}

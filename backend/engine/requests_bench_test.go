package engine

import (
	"fmt"
	"testing"
	"time"

	"gorail/backend/transfer"
)

// BenchmarkRequests is the time of a work request, from the post of a transfer to its end. The transfer has 10,000 descriptors
// that don't touch. The imitated libibverbs executes work requests in the call that posts them. So the time is that of core,
// provider and this library. Preparation is measured apart. A descriptor has 128 bytes, so that copies take little of the time.
// docs/performance.md draws the conclusions.
func BenchmarkRequests(b *testing.B) {
	for _, op := range []int{transfer.Write, transfer.Read} {
		b.Run(fmt.Sprint("op=", op), func(b *testing.B) {
			const n, length = 10_000, 128
			h := onVerbs(b, 1)
			p := h.pair(2 * n * length)
			p.a.whole(transfer.Write, p.mine, p.theirs).run()
			local, remote := p.every(n, length)
			var prep, move time.Duration
			best := time.Duration(1 << 62)
			h.lib.Zero()
			for b.Loop() {
				start := time.Now()
				x := p.a.prep(op, local, remote, "bob")
				prepped := time.Now()
				x.run()
				took := time.Since(prepped)
				prep, move, best = prep+prepped.Sub(start), move+took, min(best, took)
				x.release()
			}
			per := float64(b.N) * n
			b.ReportMetric(float64(prep.Nanoseconds())/per, "ns-prep/req")
			b.ReportMetric(float64(move.Nanoseconds())/per, "ns-move/req")
			b.ReportMetric(float64(best.Nanoseconds())/n, "ns-move-best/req")
			b.ReportMetric(float64(h.lib.Count("chains"))/per, "doorbells/req")
			b.ReportMetric(float64(h.lib.Count("cqes"))/per, "completions/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

package verbs

import (
	"fmt"
	"testing"
	"time"

	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// BenchmarkRequests measures the cost of a WRITE of 128 bytes in the provider and the imitated libibverbs. Each round
// posts 32 requests under one lock, in operations of `iov` requests each, and polls them. The cost of the call into C
// and its allocations is spread over the 32.
func BenchmarkRequests(b *testing.B) {
	for _, iov := range []int{1, 8} {
		b.Run(fmt.Sprint("iov=", iov), func(b *testing.B) {
			lib := imitation.Build(b)
			o := options(b, lib, true)
			x, y := newSide(b, o), newSide(b, o)
			ep, _ := link(x, y)
			ops := make([]drive.Op, 32/iov)
			best, total := time.Duration(1<<62), time.Duration(0)
			for b.Loop() {
				for i := range ops {
					ops[i] = drive.Op{Ep: ep.Core(), Kind: drive.WriteUnsignaled, Segs: x.segs(y, iov, 128)}
				}
				start := time.Now()
				if err := x.d.Together(ops...); err != nil {
					b.Fatal(err)
				}
				for left := len(ops); left > 0; {
					comps, err := x.d.Poll(left)
					if err != nil {
						b.Fatal(err)
					}
					left -= len(comps)
				}
				took := time.Since(start)
				total, best = total+took, min(best, took)
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(32*b.N), "ns/req")
			b.ReportMetric(float64(best.Nanoseconds())/32, "ns-best/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

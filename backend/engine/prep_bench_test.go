package engine

import (
	"testing"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// BenchmarkPrep is the time to prepare a transfer, per descriptor: with a whole region, and with a region of 13 slices.
func BenchmarkPrep(b *testing.B) {
	const n, length, stride = 100_000, 64, 128
	for name, params := range map[string][]string{"whole": nil, "slices": {"mr_max", "1MiB"}} {
		b.Run(name, func(b *testing.B) {
			p := onFake(b, fake.TCPCaps()).pair(n*stride, params...)
			local, remote := make([]Desc, n), make([]Desc, n)
			for i := range n {
				local[i], remote[i] = p.mine.desc(i*stride, length), p.theirs.desc(i*stride, length)
			}
			for b.Loop() {
				p.a.prep(transfer.Write, local, remote, "bob").release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/desc")
		})
	}
}

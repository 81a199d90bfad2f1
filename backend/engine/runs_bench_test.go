package engine

import (
	"fmt"
	"testing"
	"time"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// BenchmarkRuns is the time of a transfer per descriptor, without a network: its preparation, and from its post to its end. The
// rails take batches of it and copy them. The descriptors have 64 bytes and don't touch.
func BenchmarkRuns(b *testing.B) {
	for _, rails := range []int{1, 8} {
		for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("rails=%d/n=%d", rails, n), func(b *testing.B) { benchRuns(b, rails, n) })
		}
	}
}

func benchRuns(b *testing.B, rails, n int) {
	const length, stride = 64, 128
	h := onRails(b, rails, fake.TCPCaps())
	p := h.pair(n * stride)
	p.allUp(rails)
	local, remote := make([]Desc, n), make([]Desc, n)
	for i := range n {
		local[i], remote[i] = p.mine.desc(i*stride, length), p.theirs.desc(i*stride, length)
	}
	var prep, move time.Duration
	for b.Loop() {
		start := time.Now()
		x := p.a.prep(transfer.Write, local, remote, "bob")
		prepped := time.Now()
		x.run()
		prep, move = prep+prepped.Sub(start), move+time.Since(prepped)
		x.release()
	}
	per := float64(b.N) * float64(n)
	b.ReportMetric(float64(prep.Nanoseconds())/per, "ns-prep/desc")
	b.ReportMetric(float64(move.Nanoseconds())/per, "ns-move/desc")
}

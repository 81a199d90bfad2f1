package plan

import (
	"fmt"
	"testing"
)

// BenchmarkPlan measures the plan of descriptors of 8 KiB: apart, like KV-cache blocks, or all touching. One plan serves all
// links; their number only decides the size of the chunks.
func BenchmarkPlan(b *testing.B) {
	for _, links := range []int{1, 8} {
		for _, kind := range []struct {
			name   string
			stride uint64
		}{{"apart", 16384}, {"touching", 8192}} {
			for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
				b.Run(fmt.Sprintf("links=%d/%s/n=%d", links, kind.name, n), func(b *testing.B) {
					benchPlan(b, Config{Links: links}, n, kind.stride)
				})
			}
		}
	}
}

func benchPlan(b *testing.B, c Config, n int, stride uint64) {
	pieces, dst := make([]Op, n), make([]Op, n)
	for i := range pieces {
		pieces[i] = Op{Local: uint64(i) * stride, Remote: uint64(i) * stride, Len: 8192}
	}
	b.ReportAllocs()
	for b.Loop() {
		w := &Writer{Ops: dst}
		if write(w, pieces) != nil || w.Bytes != uint64(n)*8192 {
			b.Fatal("wrong plan")
		}
		if ops := c.Count(w); ops <= n {
			w.Ops = w.Ops[:ops]
			c.Cut(w)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/desc")
}

// BenchmarkChunks plans one descriptor of 16 GiB.
func BenchmarkChunks(b *testing.B) {
	c := Config{Links: 2}
	dst := make([]Op, 16<<10)
	for b.Loop() {
		w := &Writer{Ops: dst}
		if write(w, []Op{{Len: 16 << 30}}) != nil || c.Count(w) != len(dst) {
			b.Fatal("wrong plan")
		}
		c.Cut(w)
	}
}

package plan

import (
	"fmt"
	"testing"
)

// BenchmarkPlan measures both passes over descriptors of 8 KiB: apart, like KV-cache blocks, or all touching. One plan serves
// all links; their number only decides the size of the chunks.
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
	pieces := make([]Piece, n)
	for i := range pieces {
		pieces[i] = Piece{Local: uint64(i) * stride, Remote: uint64(i) * stride, Len: 8192}
	}
	at := func(first int, dst []Piece) { copy(dst, pieces[first:]) }
	dst := make([]Op, n)
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Count(n, at)
		if err != nil || l.Bytes != uint64(n)*8192 || c.Fill(dst, n, at) != nil {
			b.Fatal("wrong plan")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/desc")
}

// BenchmarkChunks plans one descriptor of 16 GiB.
func BenchmarkChunks(b *testing.B) {
	c := Config{Links: 2}
	at := func(_ int, dst []Piece) { dst[0] = Piece{Len: 16 << 30} }
	dst := make([]Op, 16<<10)
	for b.Loop() {
		if _, err := c.Count(1, at); err != nil || c.Fill(dst, 1, at) != nil {
			b.Fatal("wrong plan")
		}
	}
}

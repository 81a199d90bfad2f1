package plan

import (
	"fmt"
	"testing"
)

// BenchmarkPlan is both passes over descriptors of 8 KiB that can't be merged, as KV-cache blocks are.
func BenchmarkPlan(b *testing.B) {
	for _, links := range []int{1, 2, 8} {
		for _, n := range []int{1, 1000, 100_000, 2_097_152} {
			b.Run(fmt.Sprintf("links=%d/n=%d", links, n), func(b *testing.B) {
				pieces := make([]Piece, n)
				for i := range pieces {
					pieces[i] = Piece{Local: uint64(i) * 16384, Remote: uint64(i) * 24576, Len: 8192}
				}
				c := Config{Links: links}
				dst := make([]Op, n)
				at := func(first int, dst []Piece) { copy(dst, pieces[first:]) }
				b.ReportAllocs()
				for b.Loop() {
					l, err := c.Count(n, at)
					if err != nil || l.Ops != n || c.Fill(dst, n, at) != nil {
						b.Fatal("wrong plan")
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/desc")
			})
		}
	}
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

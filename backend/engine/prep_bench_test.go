package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// prepLists are the shapes of descriptor lists that preparation is measured with. Each returns the block at both sides of
// descriptor i of n. A region has twice as many blocks.
var prepLists = []struct {
	name   string
	params []string
	block  func(i, n int, random []int) int
}{
	{"strided", nil, func(i, _ int, _ []int) int { return 2 * i }},
	{"touching", nil, func(i, _ int, _ []int) int { return i }},
	{"random", nil, func(i, _ int, random []int) int { return 2 * random[i] }},
	{"slices", []string{"mr_max", "1MiB"}, func(i, _ int, _ []int) int { return 2 * i }},
}

// BenchmarkPrep is the time to prepare and release a transfer, per descriptor: the median, and the best.
func BenchmarkPrep(b *testing.B) {
	const length = 64
	for _, list := range prepLists {
		for _, n := range []int{1000, 10_000, 80_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/n=%d", list.name, n), func(b *testing.B) {
				p := onFake(b, fake.TCPCaps()).pair(n*2*length, list.params...)
				local, remote := make([]Desc, n), make([]Desc, n)
				random := rand.New(rand.NewPCG(1, 2)).Perm(n)
				for i := range n {
					at := list.block(i, n, random) * length
					local[i], remote[i] = p.mine.desc(at, length), p.theirs.desc(at, length)
				}
				b.ReportAllocs()
				var took []time.Duration
				for b.Loop() {
					start := time.Now()
					p.a.prep(transfer.Write, local, remote, "bob").release()
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/float64(n), "ns/desc")
				b.ReportMetric(float64(took[0].Nanoseconds())/float64(n), "best-ns/desc")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

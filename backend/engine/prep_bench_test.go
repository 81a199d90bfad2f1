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

// prepLists are the shapes of descriptor lists that preparation is measured with: the block of descriptor i at both sides, which
// have room for twice as many blocks. Runs of that many descriptors are in one region, and the regions take turns.
var prepLists = []struct {
	name    string
	regions int
	run     int
	params  []string
	block   func(i int, random []int) int
}{
	{"strided", 1, 1, nil, func(i int, _ []int) int { return 2 * i }},
	{"touching", 1, 1, nil, func(i int, _ []int) int { return i }},
	{"twos", 1, 1, nil, func(i int, _ []int) int { return i/2*3 + i%2 }},
	{"random", 1, 1, nil, func(i int, random []int) int { return 2 * random[i] }},
	{"layers", 80, 1, nil, func(i int, _ []int) int { return 2 * i }},
	{"runs", 80, 128, nil, func(i int, _ []int) int { return 2 * i }},
	{"spread", 1, 1, []string{"mr_max", "1MiB"}, func(i int, random []int) int { return 2 * random[i] }},
	{"slices", 1, 1, []string{"mr_max", "1MiB"}, func(i int, _ []int) int { return 2 * i }},
}

// BenchmarkPrep is the time to prepare and release a transfer, per descriptor: the median, and the best.
func BenchmarkPrep(b *testing.B) {
	const length = 64
	for _, list := range prepLists {
		for _, n := range []int{1, 1000, 10_000, 80_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/n=%d", list.name, n), func(b *testing.B) {
				each := (n + list.regions*list.run - 1) / (list.regions * list.run) * list.run
				p := onFake(b, fake.TCPCaps()).pair(each*2*length, list.params...)
				mine, theirs := []*memory{p.mine}, []*memory{p.theirs}
				for range list.regions - 1 {
					mine, theirs = append(mine, p.a.memory(each*2*length)), append(theirs, p.b.memory(each*2*length).seenBy(p.a))
				}
				local, remote := make([]Desc, n), make([]Desc, n)
				random := rand.New(rand.NewPCG(1, 2)).Perm(each)
				for i := range n {
					at, g := list.block(i/(list.regions*list.run)*list.run+i%list.run, random)*length, i/list.run%list.regions
					local[i], remote[i] = mine[g].desc(at, length), theirs[g].desc(at, length)
				}
				p.a.timePrep(b, local, remote)
			})
		}
	}
}

// timePrep reports the time to prepare and release a transfer.
func (a *agent) timePrep(b *testing.B, local, remote []Desc) {
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		a.prep(transfer.Write, local, remote, "bob").release()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	n := float64(len(local))
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/n, "ns/desc")
	b.ReportMetric(float64(took[0].Nanoseconds())/n, "best-ns/desc")
	b.ReportMetric(0, "ns/op")
}

package drive

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/scheme"
	"gorail/gorail/measure"
)

// TestPlaces: no byte of a process belongs to two edges, and all lie in its room.
func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		name string
		n, m int
	}{{"pairwise", 3, 3}, {"manytoone", 3, 1}, {"onetomany", 1, 3}, {"tp", 4, 2}, {"tp", 2, 6}, {"tp", 1, 1}} {
		list, err := scheme.Edges(tt.name, tt.n, tt.m)
		require.NoError(t, err)
		edges := number(list)
		p := measure.Point{Op: "WRITE", Block: 1 + rand.Uint64N(50), Batch: 1 + rand.IntN(3), Depth: 1 + rand.IntN(2), Threads: 2, Dense: true, Pool: 2}
		total := room(edges, []measure.Point{p})
		owned := map[[3]uint64]int{} // side, process, offset
		for i, e := range edges {
			local, remote := e.places(p)
			for slot := range p.Slots() {
				for k := range local.N {
					for b := range p.Block {
						for side, at := range []uint64{local.At(slot, k), remote.At(slot, k)} {
							process := []int{e.Initiator, e.Target}[side]
							at += b
							key := [3]uint64{uint64(side), uint64(process), at}
							if other, taken := owned[key]; taken || at >= total {
								t.Fatalf("%s: byte %v of %d is edge %d's and edge %d's", tt.name, key, total, i, other)
							}
							owned[key] = i
						}
					}
				}
			}
		}
	}
}

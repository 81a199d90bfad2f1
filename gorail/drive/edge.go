package drive

import (
	"gorail/gorail/bench/layout"
	"gorail/gorail/bench/scheme"
	"gorail/gorail/measure"
)

// edge is the traffic of one initiator with one target.
type edge struct {
	scheme.Edge
	here, there int // its number among the initiator's edges, and among the target's
}

// number returns the edges with their numbers.
func number(list []scheme.Edge) (out []edge) {
	here, there := map[int]int{}, map[int]int{}
	for _, e := range list {
		out = append(out, edge{e, here[e.Initiator], there[e.Target]})
		here[e.Initiator]++
		there[e.Target]++
	}
	return out
}

// places returns where a point's descriptors lie at the initiator and at the target. Edges of one process have memory of their own,
// except that those which move parts of the same blocks share the blocks.
func (e edge) places(p measure.Point) (local, remote layout.Place) {
	switch {
	case e.Parts == 1:
		return p.Place(uint64(e.here)*p.Room(), 0, 1), p.Place(uint64(e.there)*p.Room(), 0, 1)
	case e.WideTarget:
		return p.Place(0, 0, 1), p.Place(0, e.Part, e.Parts)
	}
	return p.Place(0, e.Part, e.Parts), p.Place(0, 0, 1)
}

// seeds returns the seeds of the orders of blocks at the initiator and at the target. All edges differ.
func (e edge) seeds() [2]uint64 {
	n := uint64(e.Initiator)<<32 | uint64(e.Target)<<1
	return [2]uint64{n, n + 1}
}

// room returns the buffer space that the points take at any process.
func room(edges []edge, points []measure.Point) (n uint64) {
	for _, p := range points {
		for _, e := range edges {
			local, remote := e.places(p)
			n = max(n, local.End(p.Slots()), remote.End(p.Slots()))
		}
	}
	return n
}

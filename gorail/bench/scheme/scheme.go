// Package scheme says which initiators move memory to or from which targets. The names are nixlbench's. It is pure.
package scheme

import (
	"fmt"
	"slices"
	"strings"
)

// Names are the schemes.
var Names = []string{"pairwise", "manytoone", "onetomany", "tp"}

// Edge is the traffic of one initiator with one target. With Parts above 1 (scheme tp with different numbers of ranks) each block of
// the side with fewer ranks is Parts blocks of the other side: this edge moves its part Part of each block.
type Edge struct {
	Initiator, Target int
	Part, Parts       int
	WideTarget        bool // the target has the larger blocks; otherwise, with Parts above 1, the initiator
}

// Edges returns the traffic between initiators and targets, in the order of the initiators.
//
//	pairwise   as many targets as initiators: each with its own
//	manytoone  all with one target
//	onetomany  one with all targets
//	tp         the ranks of two engines with tensor parallelism: one number divides the other
func Edges(name string, initiators, targets int) (out []Edge, err error) {
	n, m := initiators, targets
	if n < 1 || m < 1 {
		return nil, fmt.Errorf("%d initiators and %d targets: there must be one of each", n, m)
	}
	one := func(i, t int) { out = append(out, Edge{Initiator: i, Target: t, Parts: 1}) }
	switch {
	case !slices.Contains(Names, name):
		return nil, fmt.Errorf("no scheme %q: want %s", name, strings.Join(Names, ", "))
	case name == "pairwise" && n != m:
		return nil, fmt.Errorf("scheme pairwise wants as many targets as initiators, not %d and %d", m, n)
	case name == "manytoone" && m != 1:
		return nil, fmt.Errorf("scheme manytoone wants one target, not %d", m)
	case name == "onetomany" && n != 1:
		return nil, fmt.Errorf("scheme onetomany wants one initiator, not %d", n)
	case name == "tp" && n%m != 0 && m%n != 0:
		return nil, fmt.Errorf("scheme tp wants numbers of which one divides the other, not %d initiators and %d targets", n, m)
	case name == "manytoone":
		for i := range n {
			one(i, 0)
		}
	case name == "onetomany":
		for t := range m {
			one(0, t)
		}
	case n == m:
		for i := range n {
			one(i, i)
		}
	default:
		parts := max(n, m) / min(n, m)
		for k := range max(n, m) {
			e := Edge{Initiator: k, Target: k / parts, Part: k % parts, Parts: parts, WideTarget: true}
			if m > n {
				e = Edge{Initiator: k / parts, Target: k, Part: k % parts, Parts: parts}
			}
			out = append(out, e)
		}
	}
	return out, nil
}

package measure

import (
	"maps"
	"time"

	"gorail/gorail/count"
	"gorail/internal/subprocess"
)

// Cost is what processes used for transfers beside time: all of their threads, of every library.
type Cost struct {
	N uint64 // transfers that count.Use is of: an initiator's that were timed, or those whose notifications a target took
	count.Use

	Runtimes int           // processes whose backend has told about its Go runtime; 0: the fields below are unknown
	GoN      uint64        // transfers that the fields below are of
	Objects  uint64        // on the heap of the backend's Go runtime, those for reading this number left out
	Wait     time.Duration // of its goroutines for locks

	Traced  uint64                 // transfers of initiators whose callers of malloc were noted, after the timed ones
	Callers subprocess.Map[uint64] // their allocations by library: its file's name, "" for this program
}

// Add adds the cost of another process.
func (c *Cost) Add(o Cost) {
	c.N += o.N
	c.Use.Add(o.Use)
	c.Runtimes, c.GoN, c.Objects, c.Wait = c.Runtimes+o.Runtimes, c.GoN+o.GoN, c.Objects+o.Objects, c.Wait+o.Wait
	c.Traced += o.Traced
	all := maps.Clone(c.Callers) // others may have it, too
	for name, n := range o.Callers {
		if all == nil {
			all = subprocess.Map[uint64]{}
		}
		all[name] += n
	}
	c.Callers = all
}

// Cost is the sum of a side's costs over all samples: 0 the initiators, 1 the targets.
func (c Cell) Cost(side int) (sum Cost) {
	for _, s := range c.Samples {
		if s.Costs != nil {
			sum.Add(s.Costs[side])
		}
	}
	return sum
}

package drive

import (
	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// point measures one point. It starts processes if there are none.
func (t *turn) point(p measure.Point, n uint64) (measure.Sample, error) {
	if len(t.all()) == 0 {
		if err := t.start(); err != nil {
			return measure.Sample{}, err
		}
	}
	if !t.Check || !p.Transfers() {
		return t.timed(p, t.Pace)
	}
	type pair struct {
		src, dst *member
		from, to side.MemArgs
	}
	var pairs []pair
	for i, e := range t.edges {
		// The source has one pattern and the destination another. Both differ from those of other edges and points.
		seed := 2 * (n*uint64(len(t.edges)) + uint64(i))
		local, remote := e.places(p)
		slots, sources := p.Slots(), p.Batch*p.Sets()
		if t.subject.Backend == "" {
			slots, sources = p.Threads, p.Batch
		}
		w := pair{t.inis[e.Initiator], t.tgts[e.Target],
			side.MemArgs{Place: local, Slots: slots, IDs: p.IDs, Order: e.seeds()[0], N: sources, Seed: seed + 1, Between: seed + 1},
			side.MemArgs{Place: remote, Slots: slots, IDs: p.IDs, Order: e.seeds()[1], N: sources, Seed: seed + 2, Between: seed + 2}}
		if t.subject.Title == "memcpy" {
			w.dst, w.to.CopyTarget = w.src, true
		}
		if p.Op == "READ" {
			w.src, w.dst = w.dst, w.src
			w.from, w.to = w.to, w.from
		}
		pairs = append(pairs, w)
	}
	for _, w := range pairs {
		for _, fill := range []struct {
			m    *member
			args side.MemArgs
		}{{w.src, w.from}, {w.dst, w.to}} {
			if _, err := side.Call[side.None](fill.m.Side, "Fill", fill.args, commandLimit); err != nil {
				return measure.Sample{}, err
			}
		}
	}
	s, err := t.timed(p, t.Pace)
	if err != nil {
		return s, err
	}
	for _, w := range pairs {
		w.to.Seed = w.from.Seed
		if _, err = side.Call[side.None](w.dst.Side, "Check", w.to, commandLimit); err != nil {
			return s, err
		}
	}
	s.Verified = true
	return s, nil
}

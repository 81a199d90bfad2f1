package drive

import (
	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// point measures one point, and compares its bytes. It starts processes if there are none.
func (t *turn) point(p measure.Point, n uint64) (measure.Sample, error) {
	if t.ini == nil {
		if err := t.start(); err != nil {
			return measure.Sample{}, err
		}
	}
	if !t.Check || !p.Transfers() {
		return t.timed(p, t.Pace)
	}
	slots, sources := p.Slots(), p.Batch*p.Sets()
	if t.subject.Backend == "" {
		slots, sources = p.Threads, p.Batch
	}
	// The source has one pattern and the destination another. Both differ from those of other points.
	from := side.MemArgs{Place: p.Place(), Slots: slots, IDs: p.IDs, Order: side.InitiatorOrder, N: sources, Seed: 2*n + 1, Between: 2*n + 1}
	to := from
	to.Order, to.Seed, to.Between = side.TargetOrder, 2*n+2, 2*n+2
	src, dst := t.ini, t.tgt
	if t.subject.Title == "memcpy" {
		dst, to.CopyTarget = src, true
	}
	if p.Op == "READ" {
		src, dst = dst, src
		from, to = to, from
	}
	for _, fill := range []struct {
		m    *member
		args side.MemArgs
	}{{src, from}, {dst, to}} {
		if _, err := side.Call[side.None](fill.m.Side, "Fill", fill.args, commandLimit); err != nil {
			return measure.Sample{}, err
		}
	}
	s, err := t.timed(p, t.Pace)
	if err != nil {
		return s, err
	}
	to.Seed = from.Seed
	if _, err = side.Call[side.None](dst.Side, "Check", to, commandLimit); err != nil {
		return s, err
	}
	s.Verified = true
	return s, nil
}

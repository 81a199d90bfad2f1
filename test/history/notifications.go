package history

import (
	"math"
)

// pair is the notifications from one engine to another.
type pair struct {
	from, to Engine
	sent     []*call          // in the order of their calls
	by       map[uint64]*call // by number
	got      []Event          // in the order in which the application took them
}

// notifications: what was accepted is delivered once, in order, unless an engine of the pair has died.
func (c *checker) notifications(h []Event) {
	type ends struct{ from, to Engine }
	pairs, order := map[ends]*pair{}, []*pair{}
	of := func(from, to Engine) *pair {
		p := pairs[ends{from, to}]
		if p == nil {
			p = &pair{from: from, to: to, by: map[uint64]*call{}}
			pairs[ends{from, to}], order = p, append(order, p)
		}
		return p
	}
	for _, op := range c.order {
		if op.Note != 0 {
			p := of(op.By, op.To)
			p.sent, p.by[op.Note] = append(p.sent, op), op
		}
	}
	for _, e := range h {
		if e.Kind != Got {
			continue
		}
		if e.Wrong != 0 {
			c.violation(Delivered, e, e.At, "a notification that was not sent so, or not to this engine")
			continue
		}
		p := of(e.To, e.By)
		p.got = append(p.got, e)
	}
	for _, p := range order {
		c.pair(p)
	}
}

// accepted is when a notification was accepted; never: it was not, or nobody knows.
func (op *call) accepted() int64 {
	if op.ended && op.end.Result == OK {
		return op.end.At
	}
	return math.MaxInt64
}

func (c *checker) pair(p *pair) {
	seen := map[uint64]bool{}
	var latest *call // of those delivered so far, the one that was sent last
	for _, e := range p.got {
		op := p.by[e.Note]
		switch {
		case op == nil:
			c.violation(Delivered, e, e.At, "notification %d from %s was never sent", e.Note, p.from)
			continue
		case seen[e.Note]:
			c.violation(Delivered, e, op.At, "notification %d from %s was delivered twice", e.Note, p.from)
		case latest != nil && op.accepted() < latest.At:
			c.violation(Ordered, e, op.At, "notification %d from %s comes behind %d, which was sent after it had been accepted", e.Note, p.from, latest.Note)
		}
		seen[e.Note] = true
		if latest == nil || op.At > latest.At {
			latest = op
		}
	}
	_, dead := c.killed[p.from]
	if !dead {
		_, dead = c.killed[p.to]
	}
	for _, op := range p.sent {
		switch at := op.accepted(); {
		case at == math.MaxInt64 || seen[op.Note]:
		case latest != nil && at < latest.At:
			c.violation(Ordered, op.Event, op.At, "notification %d was accepted and not delivered, but %d was, which was sent later", op.Note, latest.Note)
		case !dead:
			c.violation(Delivered, op.Event, op.At, "notification %d was accepted and not delivered", op.Note)
		default:
			c.report.Counts["notifications that died with an engine"]++
		}
	}
	c.report.Counts["notifications in order"] += len(seen)
}

package history

import (
	"sort"
	"time"
)

// piece names a piece of an owner's memory.
type piece struct {
	owner  Engine
	number int
}

// during returns what a piece of memory was at a moment, and whether it changed from then to another one.
func (c *checker) during(p piece, from, to int64) (was Event, changed bool) {
	list := c.pieces[p]
	i := sort.Search(len(list), func(i int) bool { return list[i].At > from })
	j := sort.Search(len(list), func(i int) bool { return list[i].At > to })
	if i > 0 {
		was = list[i-1]
	}
	return was, i != j
}

// fresh: success means bytes of the memory that was behind the addresses when the transfer was posted, or of later memory.
func (c *checker) fresh(op *call) {
	if !op.ended || op.end.Result != OK || op.What != Write && op.What != Read {
		return
	}
	was, changed := c.during(piece{op.To, op.Piece}, op.At, op.end.At)
	c.report.Counts["success with memory that was "+string(was.State)]++
	e := op.end
	e.To, e.What, e.Piece = op.To, op.What, op.Piece
	switch {
	case was.State == "":
		c.violation(Fresh, e, op.At, "success of a %s of memory that its owner never had", op.What)
	case was.State == Away && !changed:
		c.violation(Fresh, e, op.At, "success of a %s of memory that was not there", op.What)
	case was.State == Freed && !changed:
		if op.What == Read && e.Wrong == 0 {
			c.violation(Fresh, e, op.At, "a READ has the bytes of memory that was freed")
		}
	case op.What == Write:
		c.arrived(op, was, changed)
	case e.Wrong == 0 && (e.Gen < was.Gen || e.Gen == was.Gen && (was.State == Away || was.State == Freed)):
		c.violation(Fresh, e, op.At, "a READ has bytes of generation %d, which had ended: generation %d was %s", e.Gen, was.Gen, was.State)
	case e.Wrong != 0 && was.State == Stable && !changed:
		c.violation(Bytes, e, op.At, "a READ has bytes that its owner never had there")
	}
}

// arrived: the owner has found the bytes of a WRITE, if its memory stayed.
func (c *checker) arrived(op *call, was Event, changed bool) {
	seen, ok := c.taken[taken{op.To, key{op.By, op.Op}}]
	if changed || was.State != Stable || ok && seen.Unseen {
		c.report.Counts["bytes unknown: the memory changed"]++
		return
	}
	if !ok {
		c.report.Counts["bytes unknown: the owner did not look"]++
		return
	}
	if seen.Wrong != 0 {
		p := Bytes
		if was.Gen > 0 {
			p = Fresh
		}
		c.violation(p, seen, op.At, "success of a WRITE whose bytes are not in the owner's memory")
	}
}

// alive: an error needs a cause.
func (c *checker) alive(op *call) {
	if !op.ended || op.end.Result == OK || op.end.Result == Released {
		return
	}
	e := op.end
	e.To, e.What, e.Piece = op.To, op.What, op.Piece
	from, to := op.At-int64(c.Settle), op.end.At
	if c.removed(op) {
		return
	}
	if was, changed := c.during(piece{op.To, op.Piece}, from, to); changed || was.State != Stable {
		c.report.Counts["error while memory changed"]++
		return
	}
	if c.disturbed(op.By, from, to) || c.disturbed(op.To, from, to) {
		c.report.Counts["error after a fault"]++
		return
	}
	c.violation(Alive, e, op.At, "%s ended with an error (%s), though the peer lives and its memory has not changed", op.What, op.end.Text)
}

// disturbed reports whether a fault hit an engine in some time. Kills and cuts are noted a moment after they are made.
func (c *checker) disturbed(g Engine, from, to int64) bool {
	const late = int64(5 * time.Second)
	if at, dead := c.killed[g]; dead && at < to+late {
		return true
	}
	for _, s := range c.stops[g] {
		if s.from < to && s.to > from {
			return true
		}
	}
	for _, at := range c.cuts[g] {
		if at > from && at < to+late {
			return true
		}
	}
	return false
}

// givenBack: nobody holds memory for long that has been taken away, but processes that are stopped, and of a stopped owner.
func (c *checker) givenBack(h []Event) {
	type debt struct {
		by, to Engine
		since  int64
	}
	told := map[debt]bool{}
	for _, e := range h {
		if e.Kind != Held {
			continue
		}
		from, stands := e.Since, false
		for _, g := range []Engine{e.By, e.To} {
			for _, s := range c.stops[g] {
				stands = stands || s.from < e.At && s.to > e.At
				if s.from < e.At && s.to < e.At {
					from = max(from, s.to)
				}
			}
		}
		if at, dead := c.killed[e.To]; stands || dead && at < e.At || time.Duration(e.At-from) < c.Soon || told[debt{e.By, e.To, e.Since}] {
			continue
		}
		told[debt{e.By, e.To, e.Since}] = true
		c.violation(GivenBack, e, e.Since, "%s holds %d bytes %v after they were taken away", e.To, e.Wrong, time.Duration(e.At-from).Round(time.Millisecond))
	}
}

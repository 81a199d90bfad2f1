package history

import (
	"fmt"
	"time"
)

// Params are of a whole history.
type Params struct {
	Providers []string      // option `provider` of all agents
	Memory    string        // "DRAM" or "VRAM"
	Bound     time.Duration // no call and no transfer takes longer
	Soon      time.Duration // memory is given back within this time
	Settle    time.Duration // so long after a fault, or a change of memory, an error is excused
	Spared    bool          // each fault leaves a rail, so no transfer fails
}

// Violation is a promise that was not kept.
type Violation struct {
	Property Property
	Event    Event
	Why      string
	Faults   []Kind // that hit an engine of the event meanwhile
}

// Report is what Check found.
type Report struct {
	Violations []Violation
	Excused    map[*Row]int   // rows of Exceptions, and how often each was needed
	Counts     map[string]int // what happened, for coverage: "WRITE ok", "killed", "bytes unknown", ...
	history    []Event
}

// call is a call with its end.
type call struct {
	Event
	end   Event
	ended bool
}

// key names a call, of any engine.
type key struct {
	by Engine
	op uint64
}

// checker has a history in the forms that the checks need.
type checker struct {
	Params
	calls  map[key]*call
	order  []*call
	killed map[Engine]int64
	stops  map[Engine][]span
	taken  map[taken]Event
	cuts   map[Engine][]int64
	left   map[[2]Engine][]int64 // removals of a peer, by the initiator
	pieces map[piece][]Event     // Altered, in the order of time
	report *Report
}

// span is a time in which an engine was stopped.
type span struct{ from, to int64 }

// taken names what a target saw of a call when deregisterMem had returned.
type taken struct {
	target Engine
	of     key
}

// Check judges a history in the order of time (Merge). The error says that the history itself is broken.
func Check(h []Event, p Params) (*Report, error) {
	c := &checker{Params: p, calls: map[key]*call{}, killed: map[Engine]int64{}, stops: map[Engine][]span{}, taken: map[taken]Event{},
		cuts: map[Engine][]int64{}, left: map[[2]Engine][]int64{}, pieces: map[piece][]Event{},
		report: &Report{Excused: map[*Row]int{}, Counts: map[string]int{}, history: h}}
	for _, e := range h {
		if err := c.read(e); err != nil {
			return nil, fmt.Errorf("%w: %s", err, e)
		}
	}
	for _, op := range c.order {
		c.ends(op)
		if op.Piece != 0 {
			c.fresh(op)
			c.alive(op)
		} else {
			c.bytes(op)
			c.spared(op)
		}
		c.takenBack(op)
	}
	c.untouched(h)
	c.givenBack(h)
	c.notifications(h)
	return c.report, nil
}

// read takes one event in.
func (c *checker) read(e Event) error {
	k := key{e.By, e.Op}
	switch e.Kind {
	case Call:
		if c.calls[k] != nil {
			return fmt.Errorf("a number is used twice")
		}
		op := &call{Event: e}
		c.calls[k], c.order = op, append(c.order, op)
		if op.What == Invalidate {
			c.left[[2]Engine{e.By, e.To}] = append(c.left[[2]Engine{e.By, e.To}], e.At)
		}
	case End:
		op := c.calls[k]
		if op == nil || op.ended {
			return fmt.Errorf("an end without a call")
		}
		op.end, op.ended = e, true
		c.report.Counts[fmt.Sprint(op.What, " ", e.Result)]++
	case Taken:
		c.taken[taken{e.By, key{e.To, e.Op}}] = e
	case Killed:
		c.killed[e.By] = e.At
	case Cut:
		c.cuts[e.By] = append(c.cuts[e.By], e.At)
	case Altered:
		at := piece{e.By, e.Piece}
		c.pieces[at] = append(c.pieces[at], e)
	case Stopped:
		c.stops[e.By] = append(c.stops[e.By], span{e.At, 1<<63 - 1})
	case Resumed:
		if s := c.stops[e.By]; len(s) > 0 {
			s[len(s)-1].to = e.At
		}
	}
	if e.Kind != Call && e.Kind != End {
		c.report.Counts[string(e.Kind)]++
	}
	return nil
}

// violation adds one, or counts the row that excuses it. from is when the call began that it is about.
func (c *checker) violation(p Property, e Event, from int64, why string, args ...any) {
	v := Violation{Property: p, Event: e, Why: fmt.Sprintf(why, args...)}
	for _, g := range []Engine{e.By, e.To} {
		if at, dead := c.killed[g]; dead && at < e.At {
			v.Faults = append(v.Faults, Killed)
		}
		for _, s := range c.stops[g] {
			if s.from < e.At && s.to > from {
				v.Faults = append(v.Faults, Stopped)
			}
		}
	}
	for i := range Exceptions {
		if row := &Exceptions[i]; row.matches(&v, &c.Params) {
			c.report.Excused[row]++
			return
		}
	}
	c.report.Violations = append(c.report.Violations, v)
}

// ends: every call ends within the bound, but for the last ones of an engine that was killed.
func (c *checker) ends(op *call) {
	end, how := op.end.At, "took"
	if !op.ended {
		died, dead := c.killed[op.By]
		if !dead {
			c.violation(Ends, op.Event, op.At, "has not ended")
			return
		}
		end, how = died, "was in progress when its process was killed, after"
	}
	if took := time.Duration(end - op.At); took > c.Bound {
		c.violation(Ends, op.Event, op.At, "%s %v, the bound is %v", how, took.Round(time.Millisecond), c.Bound)
	}
}

// bytes: success means that the bytes are in place. The initiator compares them, or the target as it takes the memory back.
func (c *checker) bytes(op *call) {
	if !op.ended || op.end.Result != OK || op.What != Write && op.What != Read {
		return
	}
	e := op.end
	if e.Unseen {
		seen, ok := c.taken[taken{op.To, key{op.By, op.Op}}]
		if _, dead := c.killed[op.To]; !ok && dead {
			c.report.Counts["bytes unknown: the target was killed"]++
			return
		}
		if !ok {
			c.violation(Bytes, e, op.At, "success of a %s whose bytes nobody saw", op.What)
			return
		}
		c.report.Counts["bytes seen by the target"]++
		e = seen
	}
	if e.Wrong != 0 {
		c.violation(Bytes, e, op.At, "success of a %s whose bytes are not in place", op.What)
	}
}

// spared: a transfer succeeds while a rail works.
func (c *checker) spared(op *call) {
	ended := op.ended && op.end.Result != OK && op.end.Result != Released
	if c.Spared && ended && (op.What == Write || op.What == Read) && !c.removed(op) {
		e := op.end
		e.To, e.What = op.To, op.What
		c.violation(Alive, e, op.At, "%s ended with an error (%s), though a rail to the peer worked all the time", op.What, op.end.Text)
	}
}

// removed reports whether the initiator removed the peer while the transfer was in flight.
func (c *checker) removed(op *call) bool {
	for _, at := range c.left[[2]Engine{op.By, op.To}] {
		if at >= op.At && at <= op.end.At {
			c.report.Counts["removed in flight"]++
			return true
		}
	}
	return false
}

// takenBack: deregisterMem succeeds.
func (c *checker) takenBack(op *call) {
	if op.ended && op.What == Deregister && op.end.Result != OK {
		e := op.end
		e.To = op.To
		c.violation(TakenBack, e, op.At, "deregisterMem failed: %s", e.Text)
	}
}

// untouched: memory of what has ended does not change.
func (c *checker) untouched(h []Event) {
	for _, e := range h {
		if e.Kind != Watched || e.Wrong == 0 {
			continue
		}
		from := e.At
		op := c.calls[key{e.By, e.Op}]
		if op != nil {
			from = op.At
			e.To, e.What = op.To, op.What
		}
		c.violation(Untouched, e, from, "memory changed after the call had ended")
	}
}

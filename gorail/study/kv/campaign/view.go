package campaign

import (
	"fmt"
	"strings"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// view makes the page.
type view struct {
	options Options
	pace    pace
	out     []left
	net     bool
	runs    []*campaign
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// Columns of the tables, by name: what reads the page finds them so.
const (
	ColFault, ColFirst, ColLongest, ColWaiting                   = "fault", "ms to the first good request: half within", "longest", "pairs without one"
	ColUndisturbed                                               = "longest request before, ms"
	ColInFlight, ColDuring, ColAfter, ColOthers, ColHung         = "failed: in flight", "begun meanwhile", "begun after the end", "of others", "no end or no answer"
	ColWrong, ColSlower, ColSlow                                 = "wrong bytes", "other pairs slower, of 100", "their requests slow, of 100"
	ColNode, ColFDs, ColThreads, ColMemory, ColSessions, ColMore = "node", "descriptors", "threads", "MiB", "sessions", "left behind"
)

// fill fills in the result.
func (v *view) fill(r *result.Result) {
	o := v.options
	where := "all processes on this host, over whatever the backend chooses"
	if v.net {
		where = "each process a host of its own: a network namespace with two rails and another boot id, over tcp"
	}
	r.Setup = fmt.Sprintf("%d prefill and %d decode agents, %s; requests of %s with %d tokens; seed %d; %d rounds of each fault", o.Prefill, o.Decode, where, o.Model.Name, o.Tokens, o.Seed, v.pace.rounds)
	for _, c := range v.runs {
		r.Sections = append(r.Sections, v.section(c))
		r.Findings = append(r.Findings, v.findings(c)...)
	}
	if len(v.runs) > 0 {
		r.Sections = append(r.Sections, v.times())
	}
	r.Methods = append(r.Methods,
		"Requests are those of vLLM's NixlConnector: the prefill node fills blocks with bytes of this request, the decode node reads them over prepared lists, and the notification at the end frees them. A decode node meets an engine that it does not know: metadata by a side channel. Each pair has one request at a time.",
		"The time to the first good request runs from the peer's return (its process serves, runs again, or its network is whole) until a request of each of its pairs has ended well. The router knows of ended processes and sends them nothing; it does not know of stopped or unreachable ones. It repeats nothing.",
		fmt.Sprintf("Slower: the median of a pair without the victim is more than a tenth above that of its quiet times. Slow requests took a tenth more than 99 of 100 of them. The row of the fault none shows what cores and chance do: a process that starts takes cores from others of this host. A request has failed without an end after %v.", v.pace.patience),
		fmt.Sprintf("Left behind: what nodes that lived from the beginning hold without requests, after the last fault against before the first, within %v: descriptors, sessions (GORAIL's socket), threads beyond %d more, anonymous memory beyond %d MiB more.", v.pace.settle, moreThreads, moreMemory>>20))
	if len(v.out) > 0 {
		t := result.Table{Title: "Left out", Keys: 1, Columns: []string{ColFault, "why"}}
		for _, l := range v.out {
			t.Rows = append(t.Rows, []result.Cell{result.Word(l.name), result.Word(l.why)})
		}
		r.Sections = append(r.Sections, result.Section{Title: "Faults that were left out", Tables: []result.Table{t}})
	}
}

// byFault adds up the rounds of each fault.
func (c *campaign) byFault() (names []string, all map[string]*sums, notes map[string][]string) {
	all, notes = map[string]*sums{}, map[string][]string{}
	for _, r := range c.rounds {
		n := r.fault.name
		if all[n] == nil {
			names, all[n] = append(names, n), &sums{}
		}
		all[n].add(r.sums)
		if len(r.waiting) > 0 {
			notes[n] = append(notes[n], fmt.Sprintf("%s: no good request of %d pairs within %v", r.victim.kind, len(r.waiting), c.patience))
		}
		if r.failed != nil {
			notes[n] = append(notes[n], "not made: "+r.failed.Error())
		}
		if r.note != "" {
			notes[n] = append(notes[n], r.victim.kind+": "+r.note)
		}
		if len(r.why) > 0 {
			notes[n] = append(notes[n], strings.Join(r.why[:min(2, len(r.why))], "; "))
		}
	}
	return names, all, notes
}

// section is one backend.
func (v *view) section(c *campaign) result.Section {
	sec := result.Section{Title: c.backend, Text: fmt.Sprintf("%d requests, each of %s MB.", len(c.traffic.all), measure.Num(float64(c.shape.Bytes())/1e6))}
	t := result.Table{Title: "Faults", Keys: 1, Columns: []string{ColFault, "what", ColFirst, ColLongest, "pairs", ColWaiting, ColInFlight, ColDuring, ColAfter, ColOthers, ColHung, ColWrong, ColSlower, ColSlow, ColUndisturbed, "notes"}}
	names, all, notes := c.byFault()
	for _, n := range names {
		s := all[n]
		waiting, what := 0, nothing.what
		for _, r := range c.rounds {
			if r.fault.name == n {
				waiting, what = waiting+len(r.waiting), r.fault.what
			}
		}
		row := []result.Cell{result.Word(n), result.Word(what), {}, {}}
		if len(s.first) > 0 {
			row[2], row[3] = result.Num(ms(at(s.first, 0.5))), result.Num(ms(s.first[len(s.first)-1]))
		}
		for _, k := range []int{len(s.first) + waiting, waiting, s.inFlight, s.during, s.after, s.others, s.hung, len(s.wrong)} {
			row = append(row, result.Num(float64(k)))
		}
		row = append(row, share(s.slower, s.pairs), share(s.slow, s.requests), result.Num(ms(s.undisturbed)), result.Word(strings.Join(notes[n], "; ")))
		t.Rows = append(t.Rows, row)
	}
	left := result.Table{Title: "Nodes that lived from the beginning: held before, after", Keys: 1, Columns: []string{ColNode, ColFDs, "after", ColThreads, "after", ColMemory, "after", ColSessions, "after", "s until no more", ColMore}}
	for _, s := range c.states {
		row := []result.Cell{result.Word(s.seat.kind + " " + fmt.Sprint(s.seat.number))}
		a, b := s.before, s.after
		for _, x := range [][2]float64{{float64(a.fds), float64(b.fds)}, {float64(a.threads), float64(b.threads)}, {float64(a.memory) / (1 << 20), float64(b.memory) / (1 << 20)}, {float64(a.sessions), float64(b.sessions)}} {
			if x[0] < 0 {
				row = append(row, result.Cell{}, result.Cell{})
				continue
			}
			row = append(row, result.Num(x[0]), result.Num(x[1]))
		}
		until := result.Cell{}
		if s.took >= 0 {
			until = result.Num(s.took.Seconds())
		}
		left.Rows = append(left.Rows, append(row, until, result.Word(s.more())))
	}
	sec.Tables = []result.Table{t, left}
	return sec
}

// share is a part in 100; empty without a whole.
func share(n, of int) result.Cell {
	if of == 0 {
		return result.Cell{}
	}
	return result.Num(100 * float64(n) / float64(of))
}

// total is all rounds but those of no fault.
func (c *campaign) total() (s sums, waiting int) {
	for _, r := range c.rounds {
		if r.fault != nothing {
			s.add(r.sums)
			waiting += len(r.waiting)
		}
	}
	return s, waiting
}

// findings are the answer for one backend.
func (v *view) findings(c *campaign) (out []string) {
	s, waiting := c.total()
	text := fmt.Sprintf("%s: %d faults; ", c.backend, len(c.rounds)-1)
	if n := len(s.first); n > 0 {
		text += fmt.Sprintf("after the peer is back, half of its pairs have a good request within %s ms", measure.Num(ms(at(s.first, 0.5))))
		if n >= 100 {
			text += fmt.Sprintf(", 99 of 100 within %s ms", measure.Num(ms(at(s.first, 0.99))))
		}
		text += fmt.Sprintf(", the last after %s ms (%d pairs)", measure.Num(ms(s.first[n-1])), n)
	}
	if waiting > 0 {
		text += fmt.Sprintf("; %d have none within %v", waiting, c.patience)
	}
	out = append(out, text+".", fmt.Sprintf("%s: %d of %d requests have wrong bytes. Failed: %d in flight to or from the victim, %d begun while the fault lasted, %d after it, %d of other pairs.",
		c.backend, len(s.wrong), len(c.traffic.all), s.inFlight, s.during, s.after, s.others))
	if s.hung > 0 {
		out = append(out, fmt.Sprintf("%s: %d requests had no end or no answer within %v.", c.backend, s.hung, c.patience))
	}
	if len(c.revived) > 0 {
		out = append(out, fmt.Sprintf("%s: the study started %d nodes anew that had no fault of their own: %s.", c.backend, len(c.revived), strings.Join(c.revived, "; ")))
	}
	var more []string
	for _, x := range c.states {
		if m := x.more(); m != "" {
			more = append(more, fmt.Sprintf("%s %d: %s", x.seat.kind, x.seat.number, m))
		}
	}
	if len(more) > 0 {
		return append(out, fmt.Sprintf("%s: left behind in survivors after %v: %s.", c.backend, c.settle, strings.Join(more, "; ")))
	}
	if len(c.states) > 0 {
		out = append(out, fmt.Sprintf("%s: nothing is left behind in %d survivors.", c.backend, len(c.states)))
	}
	return out
}

// times is the distribution of the time to the first good request.
func (v *view) times() result.Section {
	plot := result.Plot{Title: "Share of the victims' pairs with a good request", X: "ms after the peer is back", Y: "share", LogX: true}
	for _, c := range v.runs {
		s, waiting := c.total()
		line := result.Line{Name: c.backend}
		for i, d := range s.first {
			line.Add(max(ms(d), 0.01), float64(i+1)/float64(len(s.first)+waiting))
		}
		plot.Lines = append(plot.Lines, line)
	}
	return result.Section{Title: "Time to the first good request", Plots: []result.Plot{plot}}
}

package week

import (
	"fmt"
	"strings"

	"gorail/gorail/result"
)

// Columns of the table of verdicts, by name.
const (
	ColWhat, ColFirst, ColMean, ColLast = "what", "first", "mean", "last"
	ColSlope, ColBound                  = "growth over the run", "+-"
	ColLimit, ColVerdict                = "limit", "verdict"
	ColTransfers, ColMeets              = "transfers", "peers added and removed"
	ColAgents, ColRestarts, ColWrong    = "agents with new names", "restarts", "wrong bytes"
)

// names are the curves in order, with their units and limits.
func (x *run) curves() (out []curve) {
	for _, q := range quantities {
		for _, who := range []string{"hub", "partner"} {
			out = append(out, curve{key: who + ": " + q.name, plot: q.name, line: who, unit: q.unit})
		}
	}
	for _, f := range folders {
		out = append(out, curve{key: f.what, plot: "files", line: strings.TrimPrefix(f.what, "files in ")})
	}
	return append(out, curve{key: "files in " + shared, plot: "files", line: shared})
}

// curve is one quantity of one process.
type curve struct{ key, plot, line, unit string }

func (x *run) fill(r *result.Result) {
	s := result.Section{Title: "Over " + x.over}
	done := result.Table{Title: "What was done", Columns: []string{ColTransfers, ColMeets, ColAgents, ColRestarts, "GB", "minutes", ColWrong}}
	wrong := 0.0
	if x.failed != nil && strings.Contains(x.failed.Error(), "wrong bytes") {
		wrong = 1
	}
	done.Rows = append(done.Rows, []result.Cell{result.Num(float64(x.done.Transfers)), result.Num(float64(x.kinds.meets)), result.Num(float64(x.kinds.agents)), result.Num(float64(x.kinds.restarts)),
		result.Num(float64(x.done.Bytes) / 1e9), result.Num(x.took.Minutes()), result.Num(wrong)})
	flat := result.Table{Title: "What is held", Keys: 1, Columns: []string{ColWhat, ColFirst, ColMean, ColLast, ColSlope, ColBound, ColLimit, ColVerdict}}
	var plots []*result.Plot
	var not []string
	for _, c := range x.curves() {
		y := make([]float64, 0, len(x.samples))
		line := result.Line{Name: c.line}
		for _, s := range x.samples {
			if s.rested {
				y = append(y, s.values[c.key])
			}
			line.Add(float64(s.work), s.values[c.key])
		}
		if len(y) == 0 {
			continue
		}
		t, limit := trendOf(y), x.limitOf(c)
		name := c.key
		if c.unit != "" {
			name += ", " + c.unit
		}
		v := t.verdict(limit)
		if v != Flat {
			not = append(not, fmt.Sprintf("%s (%s: %+.3g +- %.2g over the run, limit %.3g)", name, v, t.slope, t.bound, limit))
		}
		flat.Rows = append(flat.Rows, []result.Cell{result.Word(name), result.Num(y[0]), result.Num(t.mean), result.Num(y[len(y)-1]), result.Num(t.slope), result.Num(t.bound), result.Num(limit), result.Word(v)})
		if len(plots) == 0 || plots[len(plots)-1].Title != c.plot {
			plots = append(plots, &result.Plot{Title: c.plot, X: "transfers", Y: strings.TrimSpace(c.plot + " " + c.unit)})
		}
		p := plots[len(plots)-1]
		p.Lines = append(p.Lines, line)
	}
	for _, p := range plots {
		s.Plots = append(s.Plots, *p)
	}
	s.Tables = append(s.Tables, done, flat)
	r.Sections = append(r.Sections, s)
	text := fmt.Sprintf("Over %s: %s transfers, %s peers added and removed, %s agents with names of their own, and %s restarts of a process", x.over, done.Rows[0][0], done.Rows[0][1], done.Rows[0][2], done.Rows[0][3])
	if len(x.samples) < x.rounds/2 {
		text += "; too few rounds to say whether anything grows"
	} else if len(not) == 0 {
		text += ": all that the processes hold is flat"
	} else {
		text += "; not flat: " + strings.Join(not, "; ")
	}
	r.Findings = append(r.Findings, text+".")
}

// limitOf is by how much a curve may grow over the run: by less than one object for each restart, the rarest of what is done. The least limits
// are above what grows no more later: Go's packages meet new types for a while (100 objects), libraries take a buffer now and then (5 KiB).
func (x *run) limitOf(c curve) float64 {
	n := float64(x.all.restarts)
	switch c.plot {
	case "resident memory": // allocators keep a few pages more or less: 46 to 52 MiB after 16 rests of a run of 32 minutes
		return 8
	case "memory of malloc":
		return max(12, n*16/1024)
	case "Go heap of the plugin":
		return max(64, n*64/1024)
	case "Go objects of the plugin":
		return max(180, n/2)
	}
	return n / 2
}

func methods(r *result.Result) {
	r.Methods = append(r.Methods,
		"Each round does its share of everything, waits until the sessions of others have ended, and takes a sample; 16 samples are taken after a rest of connect_timeout and 1 s, and verdicts are about those. The partner's and the hub's agents WRITE bytes that no transfer had before to each other, READ them back and compare all. They add and remove each other's agents, with transfers between. The partner makes agents under new names, which do the same with the hub and end. A third process does so, is killed or ends, and is started again under its old name or a new one. Notifications are counted: none is lost or comes twice. Agents that end notify the hub in the full form only: an engine remembers how far the last 4,096 engines were that notified it (limits.notif_progress), and only there the run is long enough for that to be full.",
		"Memory of malloc is what it has given out (malloc_info, after malloc_trim; threads have no caches). Go objects are those that are left after a collection. Growth is the slope of a line through the last two thirds of these samples, times the run; its bound has 95 %, and takes into account that neighbours resemble each other. Flat: slope and bound together are within the limit, which is less than one object, descriptor, thread or file for each of the rarest things done.")
}

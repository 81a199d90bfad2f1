// Package small is the study of small messages: operations a second and tail latency by size, threads and agents.
package small

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"gorail/gorail/measure"
	"gorail/gorail/study/env"
	"gorail/gorail/study/result"
)

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, r *result.Result) error {
	subjects := []measure.Subject{{Title: "GORAIL", Backend: "GORAIL"}}
	if !e.Peer.Given() {
		subjects = append(subjects, measure.Subject{Title: "GORAIL tcp", Backend: "GORAIL", Params: map[string]string{"provider": "tcp"}})
	}
	if e.Has("UCX") {
		subjects = append(subjects, measure.Subject{Title: "UCX", Backend: "UCX"})
	}
	c := e.Config(subjects, points(e))
	r.Setup = e.Setup(c)
	r.Checks = append(r.Checks, env.Quiet())
	run := e.Bench(ctx, c, r)
	v := &view{run}
	r.Sections = append(r.Sections, v.latency(), v.flight(), v.load("Threads", "threads of one agent", func(p measure.Point) int { return p.Threads }, func(p measure.Point) bool { return p.Engines() == 1 }),
		v.load("Agents", "agents with a thread each", measure.Point.Engines, func(p measure.Point) bool { return p.Threads == p.Engines() }))
	r.Sections = slices.DeleteFunc(r.Sections, func(s result.Section) bool { return len(s.Tables) == 0 })
	r.Findings = append(r.Findings, v.findings()...)
	r.Methods = append(r.Methods,
		"A transfer is one WRITE of one descriptor; its time runs from before post_xfer_req until get_xfer_status says done. The timed loop is in C.",
		"Percentiles come from HDR histograms of all repeats with two significant figures; a percentile of too few transfers is left out. Rates are medians of repeats.",
		"Backends take turns in processes of their own, so that no two run at the same time.")
	return nil
}

// points are the kinds of transfers. One number changes at a time.
func points(e *env.Env) (out []measure.Point) {
	sizes := env.Pick(e, []uint64{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10}, []uint64{64, 1 << 10, 16 << 10, 64 << 10}, []uint64{64, 64 << 10})
	add := func(p measure.Point) {
		p.Op, p.Batch = "WRITE", 1
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, depth := range []int{1, 16} {
		for _, s := range sizes {
			add(measure.Point{Block: s, Depth: depth, Threads: 1})
		}
	}
	for _, n := range env.Pick(e, []int{1, 2, 4, 8}, []int{1, 2, 4}, []int{1, 2}) {
		for _, s := range env.Pick(e, []uint64{64, 4 << 10, 64 << 10}, []uint64{64, 16 << 10}, []uint64{64}) {
			add(measure.Point{Block: s, Depth: 1, Threads: n})
			p := measure.Point{Block: s, Depth: 1, Threads: n}
			if n > 1 {
				p.Agents = n
			}
			add(p)
		}
	}
	return out
}

// view is the run as tables and plots.
type view struct{ *measure.Run }

func (v *view) of(subject string, in func(measure.Point) bool) (out []measure.Point) {
	for _, p := range v.Points() {
		if in(p) && len(v.Cell(subject, p).Samples) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func one(p measure.Point) bool { return p.Threads == 1 && p.Depth == 1 && p.Engines() == 1 }

// latency is one transfer after the other: the time of each.
func (v *view) latency() result.Section {
	t := result.Table{Title: "One thread, one in flight", Keys: 2, Columns: result.Columns("size", "backend", "+a second", "-us p50", "-p99", "-p99.9", "-slowest", "-CPU s/GiB initiator", "-target")}
	mid := result.Plot{Title: "Time of a WRITE: median, and p99 dashed", X: "bytes", Y: "us", LogX: true, LogY: true, Bytes: true}
	for _, s := range v.Subjects {
		p50, p99 := result.Line{Name: s}, result.Line{Name: s + " p99", Of: s, Dashed: true}
		for _, p := range v.of(s, one) {
			c := v.Cell(s, p)
			row := []result.Cell{result.Word(p.Shape()), result.Word(s), result.Num(c.Median(measure.Sample.PerSecond))}
			for _, q := range []float64{0.5, 0.99, 0.999, 1} {
				row = append(row, env.Micros(&c.Lat, q))
			}
			for i := range 2 {
				row = append(row, result.Num(c.Median(func(s measure.Sample) float64 { return s.CPUPerGiB()[i] })))
			}
			t.Rows = append(t.Rows, row)
			p50.Add(float64(p.Block), c.Lat.Quantile(0.5)/1e3)
			if c.Lat.Count() >= 100 {
				p99.Add(float64(p.Block), c.Lat.Quantile(0.99)/1e3)
			}
		}
		mid.Lines = append(mid.Lines, p50, p99)
	}
	return section("Latency", "Each transfer waits for the one before. The tail is what a request waits for when it needs all of its transfers.", t, mid)
}

// flight is the rate with one and with 16 in flight.
func (v *view) flight() result.Section {
	t := result.Table{Title: "One thread, transfers in flight", Keys: 2, Columns: result.Columns("size", "backend", "+1 in flight, a second", "+16 in flight", "+GB/s", "gain")}
	plot := result.Plot{Title: "WRITEs a second of one thread with 16 in flight", X: "bytes", Y: "a second", LogX: true, LogY: true, Bytes: true}
	for _, s := range v.Subjects {
		line := result.Line{Name: s}
		for _, p := range v.of(s, func(p measure.Point) bool { return p.Threads == 1 && p.Depth == 16 }) {
			single := p
			single.Depth = 1
			a, b := v.Cell(s, single), v.Cell(s, p)
			many := b.Median(measure.Sample.PerSecond)
			t.Rows = append(t.Rows, []result.Cell{result.Word(p.Shape()), result.Word(s), result.Num(a.Median(measure.Sample.PerSecond)), result.Num(many),
				result.Num(b.Median(measure.Sample.GBps)), result.Num(measure.Ratio(b, a, measure.Sample.PerSecond).Median)})
			line.Add(float64(p.Block), many)
		}
		plot.Lines = append(plot.Lines, line)
	}
	return section("In flight", "With several transfers in flight the way's delay no longer counts, only its cost.", t, plot)
}

// load is the rate by number of threads or of agents.
func (v *view) load(title, what string, number func(measure.Point) int, in func(measure.Point) bool) result.Section {
	t := result.Table{Title: "By " + what, Keys: 3, Columns: result.Columns("size", "number", "backend", "+a second", "to one", "-us p50", "-p99", "-p99.9")}
	plot := result.Plot{Title: "WRITEs of the smallest size a second by " + what, X: what, Y: "a second", LogY: true}
	for _, s := range v.Subjects {
		list := v.of(s, func(p measure.Point) bool { return p.Depth == 1 && in(p) && v.loaded(p.Block) })
		line := result.Line{Name: s}
		for _, p := range list {
			base := p
			base.Threads, base.Agents = 1, 0
			c := v.Cell(s, p)
			t.Rows = append(t.Rows, []result.Cell{result.Word(p.Shape()), result.Word(fmt.Sprint(number(p))), result.Word(s), result.Num(c.Median(measure.Sample.PerSecond)),
				result.Num(measure.Ratio(c, v.Cell(s, base), measure.Sample.PerSecond).Median),
				env.Micros(&c.Lat, 0.5), env.Micros(&c.Lat, 0.99), env.Micros(&c.Lat, 0.999)})
			if p.Block == list[0].Block {
				line.Add(float64(number(p)), c.Median(measure.Sample.PerSecond))
			}
		}
		plot.Lines = append(plot.Lines, line)
	}
	return section(title, fmt.Sprintf("This machine has %d cores, and the target polls on one of them.", runtime.NumCPU()), t, plot)
}

// loaded reports whether a size was measured with several threads.
func (v *view) loaded(size uint64) bool {
	return slices.ContainsFunc(v.Points(), func(p measure.Point) bool { return p.Block == size && p.Threads > 1 })
}

func section(title, text string, t result.Table, p result.Plot) result.Section {
	s := result.Section{Title: title, Text: text}
	if len(t.Rows) > 0 {
		s.Tables, s.Plots = []result.Table{t}, []result.Plot{p}
	}
	return s
}

// Package report writes the results of a run: tables, JSON, plots, and the compact table in docs/benchmarks.md.
package report

import (
	"fmt"
	"math"
	"strings"

	"gorail/gorail/measure"
)

// Table is a title, a head and rows of cells.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// Num formats a number with three significant digits.
func Num(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case v == 0:
		return "0"
	case v >= 1000:
		return measure.Thousands(int(math.Round(v)))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.01:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// spread formats a ratio with its range.
func spread(s measure.Spread) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return fmt.Sprintf("%s (%s .. %s)", Num(s.Median), Num(s.Low), Num(s.High))
}

func us(ns float64) string { return Num(ns / 1e3) }

// Tables returns the non-empty tables of a run.
func Tables(r *measure.Run) (out []Table) {
	type group struct {
		op                     string
		threads, agents, depth int
	}
	var seen []group
	for _, p := range r.Points() {
		g := group{p.Op, p.Threads, p.Engines(), p.Depth}
		if p.Transfers() && !contains(seen, g) {
			seen = append(seen, g)
			out = append(out, transfers(r, fmt.Sprintf("%s%s", p.Op, load(p)),
				func(q measure.Point) bool { return group{q.Op, q.Threads, q.Engines(), q.Depth} == g }))
		}
	}
	for _, t := range []Table{kernels(r), notifications(r), idle(r), starts(r)} {
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

func contains[T comparable](list []T, v T) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

// load describes the threads and the depth if they are more than one.
func load(p measure.Point) string {
	var b strings.Builder
	if p.Threads > 1 {
		fmt.Fprintf(&b, ", %d threads", p.Threads)
	}
	if p.Engines() > 1 {
		fmt.Fprintf(&b, ", %d agents", p.Engines())
	}
	if p.Depth > 1 {
		fmt.Fprintf(&b, ", %d in flight each", p.Depth)
	}
	return b.String()
}

// base returns the backend that others are compared with; "" for none.
func base(r *measure.Run) string {
	if len(r.Subjects) < 2 {
		return ""
	}
	return r.Subjects[len(r.Subjects)-1]
}

func transfers(r *measure.Run, title string, in func(measure.Point) bool) Table {
	t := Table{Title: title, Head: []string{"transfer", "backend", "GB/s", "a second", "us p50", "p90", "p99", "p99.9", "us in post p50",
		"us to make", "CPU s/GiB initiator", "target"}}
	if b := base(r); b != "" {
		t.Head = append(t.Head, "rate to "+b, "p99 to "+b)
	}
	for _, p := range r.Points() {
		if !in(p) {
			continue
		}
		for _, s := range append(append([]string{}, r.Subjects...), r.Limits...) {
			c := r.Cell(s, p)
			if len(c.Samples) == 0 {
				if c.Failed != "" {
					t.Rows = append(t.Rows, []string{p.Shape(), s, c.Failed})
				}
				continue
			}
			t.Rows = append(t.Rows, row(r, p, s, c))
		}
	}
	return t
}

func row(r *measure.Run, p measure.Point, subject string, c measure.Cell) []string {
	cells := []string{p.Shape(), subject, Num(c.Median(measure.Sample.GBps)), Num(c.Median(measure.Sample.PerSecond)),
		us(c.Lat.Quantile(0.5)), us(c.Lat.Quantile(0.9)), us(c.Lat.Quantile(0.99)), us(c.Lat.Quantile(0.999))}
	if contains(r.Limits, subject) {
		cells = append(cells, "", "")
	} else {
		made := c.Median(func(s measure.Sample) float64 { return float64(s.Make) })
		if p.IDs != "" {
			made = c.Makes.Quantile(0.5)
		}
		cells = append(cells, us(c.Post.Quantile(0.5)), us(made))
	}
	for i := range 2 {
		if contains(r.Limits, subject) && subject == measure.TCP { // it spins
			cells = append(cells, "")
			continue
		}
		cells = append(cells, Num(c.Median(func(s measure.Sample) float64 { return s.CPUPerGiB()[i] })))
	}
	if b := base(r); b != "" && subject != b {
		ref := r.Cell(b, p)
		cells = append(cells, spread(measure.Ratio(c, ref, measure.Sample.PerSecond)),
			spread(measure.Ratio(c, ref, func(s measure.Sample) float64 { return s.Lat.Quantile(0.99) })))
	}
	return cells
}

// kernels compares transfers beside kernels with those alone, and the kernels beside transfers with those alone.
func kernels(r *measure.Run) Table {
	t := Table{Title: "Transfers beside kernels on the GPUs", Head: []string{"transfer", "backend", "GB/s alone", "beside kernels", "share",
		"launches a second, initiator's GPU", "beside transfers", "share", "target's GPU", "beside transfers", "share"}}
	for _, p := range r.Points() {
		if !p.Busy {
			continue
		}
		quiet := p
		quiet.Busy = false
		for _, s := range r.Subjects {
			c, alone := r.Cell(s, p), r.Cell(s, quiet)
			if len(c.Samples) == 0 {
				continue
			}
			cells := []string{p.Op + " " + quiet.Shape() + load(p), s, Num(alone.Median(measure.Sample.GBps)), Num(c.Median(measure.Sample.GBps)),
				spread(measure.Ratio(c, alone, measure.Sample.GBps))}
			for i := range 2 {
				before := c.Median(func(s measure.Sample) float64 { return s.Kernels.Alone[i] })
				with := c.Median(func(s measure.Sample) float64 { return s.Kernels.With[i] })
				if before == 0 {
					cells = append(cells, "", "", "") // the same GPU, or none
					continue
				}
				cells = append(cells, Num(before), Num(with), Num(with/before))
			}
			t.Rows = append(t.Rows, cells)
		}
	}
	return t
}

func notifications(r *measure.Run) Table {
	t := Table{Title: "Notifications alone, until the last has arrived", Head: []string{"bytes", "backend", "a second"}}
	b := base(r)
	if b != "" {
		t.Head = append(t.Head, "to "+b)
	}
	each(r, "NOTIFY", func(p measure.Point, s string, c measure.Cell) {
		cells := []string{fmt.Sprint(p.Block), s, Num(c.Median(measure.Sample.PerSecond))}
		if b != "" && s != b {
			cells = append(cells, spread(measure.Ratio(c, r.Cell(b, p), measure.Sample.PerSecond)))
		}
		t.Rows = append(t.Rows, cells)
	})
	return t
}

func idle(r *measure.Run) Table {
	t := Table{Title: "Idle, % of a core", Head: []string{"backend", "initiator", "target"}}
	each(r, "IDLE", func(_ measure.Point, s string, c measure.Cell) {
		cells := []string{s}
		for i := range 2 {
			cells = append(cells, Num(c.Median(func(s measure.Sample) float64 { return 100 * s.CPU[i].Seconds() / s.Wall.Seconds() })))
		}
		t.Rows = append(t.Rows, cells)
	})
	return t
}

// each calls f for each backend with samples of an op.
func each(r *measure.Run, op string, f func(p measure.Point, subject string, c measure.Cell)) {
	for _, p := range r.Points() {
		if p.Op != op {
			continue
		}
		for _, s := range r.Subjects {
			if c := r.Cell(s, p); len(c.Samples) > 0 {
				f(p, s, c)
			}
		}
	}
}

func starts(r *measure.Run) Table {
	t := Table{Title: "What a pair of processes costs", Head: []string{"backend", "ms, first engine", "ms, later engine", "ms, first 4 KiB transfer",
		"threads more, initiator", "target", "MiB more at most, initiator", "target", "fds more, initiator"}}
	for _, s := range r.Subjects {
		var cols [8][]float64
		for _, p := range r.Pairs {
			if p.Subject == s {
				for i, v := range []float64{p.Create.Seconds() * 1e3, p.Later.Seconds() * 1e3, p.First.Seconds() * 1e3, float64(p.Threads[0]),
					float64(p.Threads[1]), p.MiB[0], p.MiB[1], float64(p.FDs[0])} {
					cols[i] = append(cols[i], v)
				}
			}
		}
		if len(cols[0]) == 0 {
			continue
		}
		cells := []string{s}
		for _, c := range cols {
			cells = append(cells, Num(measure.Median(c)))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// Package report makes a page of a benchmark's run: tables and plots.
package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// Text writes a run's tables for a terminal.
func Text(w io.Writer, r *measure.Run) error {
	p := Page(r)
	fmt.Fprintf(w, "%s\n%s\n%s\n", p.Machine, p.Versions, p.Setup)
	for _, s := range p.Sections {
		for _, t := range s.Tables {
			fmt.Fprintf(w, "\n%s\n", s.Title)
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
			for _, c := range t.Columns {
				fmt.Fprintf(tw, "%s\t", c)
			}
			for _, row := range t.Rows {
				fmt.Fprintln(tw)
				for _, c := range row {
					fmt.Fprintf(tw, "%s\t", c)
				}
			}
			fmt.Fprintln(tw)
			if err := tw.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Page is a run as a page.
func Page(r *measure.Run) *result.Result {
	out := &result.Result{Version: result.Version, Study: "bench", Title: r.Title, When: r.When, Command: r.Command,
		Machine: strings.Join(append([]string{r.Machine}, r.GPUs...), "; "), Versions: r.Versions, Setup: r.Setup}
	add := func(title string, t result.Table, plots ...result.Plot) {
		if len(t.Rows) > 0 {
			out.Sections = append(out.Sections, result.Section{Title: title, Tables: []result.Table{t}, Plots: plots})
		}
	}
	type group struct {
		op                     string
		threads, agents, depth int
	}
	of := func(p measure.Point) group { return group{p.Op, p.Threads, p.Engines(), p.Depth} }
	var seen []group
	for _, p := range r.Points() {
		if g := of(p); p.Transfers() && !slices.Contains(seen, g) {
			seen = append(seen, g)
			in := func(q measure.Point) bool { return of(q) == g }
			add(p.Op+load(p), transfers(r, in), plots(r, in)...)
		}
	}
	add("Notifications alone, until the last has arrived", notifications(r))
	add("Idle, % of a core", idle(r))
	add("What a pair of processes costs", starts(r))
	return out
}

// spread is a ratio with its range.
func spread(s measure.Spread) result.Cell {
	if math.IsNaN(s.Median) {
		return result.Cell{}
	}
	return result.Word(fmt.Sprintf("%s (%s .. %s)", measure.Num(s.Median), measure.Num(s.Low), measure.Num(s.High)))
}

func us(ns float64) result.Cell { return result.Num(ns / 1e3) }

// load describes the threads and the depth if they are more than one.
func load(p measure.Point) (text string) {
	if p.Threads > 1 {
		text += fmt.Sprintf(", %d threads", p.Threads)
	}
	if p.Engines() > 1 {
		text += fmt.Sprintf(", %d agents", p.Engines())
	}
	if p.Depth > 1 {
		text += fmt.Sprintf(", %d in flight each", p.Depth)
	}
	return text
}

// base returns the backend that others are compared with; "" for none.
func base(r *measure.Run) string {
	if len(r.Subjects) < 2 {
		return ""
	}
	return r.Subjects[len(r.Subjects)-1]
}

func transfers(r *measure.Run, in func(measure.Point) bool) result.Table {
	t := result.Table{Keys: 2, Columns: []string{"transfer", "backend", "GB/s", "a second", "us p50", "p90", "p99", "p99.9", "us in post p50",
		"us to make", "CPU s/GiB initiator", "target"}}
	if b := base(r); b != "" {
		t.Columns = append(t.Columns, "rate to "+b, "p99 to "+b)
	}
	for _, p := range r.Points() {
		if !in(p) {
			continue
		}
		for _, s := range slices.Concat(r.Subjects, r.Limits) {
			switch c := r.Cell(s, p); {
			case len(c.Samples) > 0:
				t.Rows = append(t.Rows, row(r, p, s, c))
			case c.Failed != "":
				t.Rows = append(t.Rows, []result.Cell{result.Word(p.Shape()), result.Word(s), result.Word(c.Failed)})
			}
		}
	}
	return t
}

func row(r *measure.Run, p measure.Point, subject string, c measure.Cell) []result.Cell {
	cells := []result.Cell{result.Word(p.Shape()), result.Word(subject), result.Num(c.Median(measure.Sample.GBps)), result.Num(c.Median(measure.Sample.PerSecond))}
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		cells = append(cells, us(c.Lat.Quantile(q)))
	}
	if slices.Contains(r.Limits, subject) {
		cells = append(cells, result.Cell{}, result.Cell{})
	} else {
		made := c.Median(func(s measure.Sample) float64 { return float64(s.Make) })
		if p.IDs != "" {
			made = c.Makes.Quantile(0.5)
		}
		cells = append(cells, us(c.Post.Quantile(0.5)), us(made))
	}
	for i := range 2 {
		cpu := result.Cell{}
		if subject != measure.TCP { // it spins
			cpu = result.Num(c.Median(func(s measure.Sample) float64 { return s.CPUPerGiB()[i] }))
		}
		cells = append(cells, cpu)
	}
	if b := base(r); b != "" && subject != b {
		ref := r.Cell(b, p)
		cells = append(cells, spread(measure.Ratio(c, ref, measure.Sample.PerSecond)),
			spread(measure.Ratio(c, ref, func(s measure.Sample) float64 { return s.Lat.Quantile(0.99) })))
	}
	return cells
}

// plots are rate and latency over the size of single descriptors.
func plots(r *measure.Run, in func(measure.Point) bool) []result.Plot {
	rate := result.Plot{Title: "Rate", X: "bytes of a transfer", Y: "GB/s", LogX: true, LogY: true, Bytes: true}
	lat := result.Plot{Title: "Time of a transfer, p50", X: "bytes of a transfer", Y: "us", LogX: true, LogY: true, Bytes: true}
	for _, s := range slices.Concat(r.Subjects, r.Limits) {
		limit := slices.Contains(r.Limits, s)
		a, b := result.Line{Name: s, Dashed: limit}, result.Line{Name: s, Dashed: limit}
		for _, p := range r.Points() {
			if c := r.Cell(s, p); in(p) && p.Batch == 1 && len(c.Samples) > 0 {
				a.Add(float64(p.Block), c.Median(measure.Sample.GBps))
				b.Add(float64(p.Block), c.Lat.Quantile(0.5)/1e3)
			}
		}
		rate.Lines, lat.Lines = append(rate.Lines, a), append(lat.Lines, b)
	}
	return []result.Plot{rate, lat}
}

func notifications(r *measure.Run) result.Table {
	t := result.Table{Keys: 2, Columns: []string{"bytes", "backend", "a second"}}
	b := base(r)
	if b != "" {
		t.Columns = append(t.Columns, "to "+b)
	}
	each(r, "NOTIFY", func(p measure.Point, s string, c measure.Cell) {
		cells := []result.Cell{result.Word(fmt.Sprint(p.Block)), result.Word(s), result.Num(c.Median(measure.Sample.PerSecond))}
		if b != "" && s != b {
			cells = append(cells, spread(measure.Ratio(c, r.Cell(b, p), measure.Sample.PerSecond)))
		}
		t.Rows = append(t.Rows, cells)
	})
	return t
}

func idle(r *measure.Run) result.Table {
	t := result.Table{Keys: 1, Columns: []string{"backend", "initiator", "target"}}
	each(r, "IDLE", func(_ measure.Point, s string, c measure.Cell) {
		cells := []result.Cell{result.Word(s)}
		for i := range 2 {
			cells = append(cells, result.Num(c.Median(func(s measure.Sample) float64 { return 100 * s.CPU[i].Seconds() / s.Wall.Seconds() })))
		}
		t.Rows = append(t.Rows, cells)
	})
	return t
}

// each calls f for each backend with samples of an op.
func each(r *measure.Run, op string, f func(p measure.Point, subject string, c measure.Cell)) {
	for _, p := range r.Points() {
		for _, s := range r.Subjects {
			if c := r.Cell(s, p); p.Op == op && len(c.Samples) > 0 {
				f(p, s, c)
			}
		}
	}
}

func starts(r *measure.Run) result.Table {
	t := result.Table{Keys: 1, Columns: []string{"backend", "ms to create the engine", "ms, first 4 KiB transfer"}}
	for _, s := range r.Subjects {
		if create, first, ok := r.Starts(s); ok {
			t.Rows = append(t.Rows, []result.Cell{result.Word(s), result.Num(create), result.Num(first)})
		}
	}
	return t
}

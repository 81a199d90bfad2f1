// Package report makes a page of a benchmark's run: tables and plots.
package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/charmbracelet/x/ansi"

	"gorail/gorail/bench/host"
	"gorail/gorail/measure"
	"gorail/gorail/result"
)

// width is that of the lines of Text.
const width = 100

// Text writes a run's tables for a terminal: six columns of each, or all.
func Text(w io.Writer, r *measure.Run, wide bool) error {
	p := Page(r)
	for _, line := range []string{p.Machine, p.Versions, p.Setup} {
		fmt.Fprintln(w, ansi.Wordwrap(line, width, ""))
	}
	for _, s := range p.Sections {
		for _, t := range s.Tables {
			fmt.Fprintf(w, "\n%s\n", s.Title)
			failed := failures(&t)
			if !wide {
				t = narrow(t)
			}
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
			for _, line := range failed {
				fmt.Fprintln(w, line)
			}
		}
		if s.Text != "" {
			fmt.Fprintln(w, ansi.Wordwrap(s.Text, width, ""))
		}
	}
	if r.Repeats > 1 && len(p.Sections) > 0 {
		fmt.Fprintf(w, "medians of %d repeats\n", r.Repeats)
	}
	if r.Ended != "" {
		fmt.Fprintf(w, "\nincomplete: %s\n", r.Ended)
	}
	return nil
}

// failures takes the reasons out of rows of points that failed, whose width no column has, and returns them as lines.
func failures(t *result.Table) (lines []string) {
	t.Rows = slices.Clone(t.Rows)
	for i, row := range t.Rows {
		if t.Keys == 2 && len(row) == 3 && row[2].Text != "" && len(t.Columns) > len(row) {
			lines = append(lines, fmt.Sprintf("%s %s failed: %s", row[0], row[1], strings.Join(strings.Fields(row[2].Text), " ")))
			t.Rows[i] = []result.Cell{row[0], row[1], result.Word("failed")}
		}
	}
	return lines
}

// longest is the width of a backend's name in a table of six columns.
const longest = 28

// narrow takes six columns of a table of transfers. The sixth is the ratio if there is one.
func narrow(t result.Table) result.Table {
	if len(t.Columns) <= 6 {
		return t
	}
	take := []int{0, 1, 2, 4, 6, 3}
	if len(t.Columns) > columns {
		take[5] = columns
	}
	out := result.Table{Title: t.Title, Keys: t.Keys}
	for _, i := range take {
		out.Columns = append(out.Columns, ansi.Truncate(t.Columns[i], longest-6, "…"))
	}
	for _, row := range t.Rows {
		var cells []result.Cell
		for _, i := range take {
			if i < len(row) {
				cells = append(cells, row[i])
			}
		}
		name, busy := strings.CutSuffix(cells[1].Text, mark)
		if cells[1].Text = ansi.Truncate(name, longest-1, "…"); busy {
			cells[1].Text += mark
		}
		out.Rows = append(out.Rows, cells)
	}
	return out
}

// Page is a run as a page.
func Page(r *measure.Run) *result.Result {
	out := &result.Result{Version: result.Version, Study: "bench", Title: r.Title, When: r.When, Command: r.Command,
		Machine: strings.Join(append([]string{r.Machine}, r.GPUs...), "; "), Versions: r.Versions, Setup: r.Setup, Ended: r.Ended}
	add := func(title, text string, t result.Table, plots ...result.Plot) {
		if len(t.Rows) > 0 {
			out.Sections = append(out.Sections, result.Section{Title: title, Text: text, Tables: []result.Table{t}, Plots: plots})
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
			add(p.Op+load(p), marked(r, in), transfers(r, in), plots(r, in)...)
		}
	}
	add("Notifications alone, until the last has arrived", "", notifications(r))
	add("Idle, % of a core", "", idle(r))
	add("What a pair of processes costs", "", starts(r))
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

// mark stands behind the names of backends in rows that were measured while other programs were busy.
const mark = "*"

// marked says what the mark means, if a row of the points has it.
func marked(r *measure.Run, in func(measure.Point) bool) string {
	busy := 0.0
	for _, s := range r.Samples {
		if in(s.Point) {
			busy = max(busy, s.Busy)
		}
	}
	if busy == 0 {
		return ""
	}
	return mark + " " + host.Disturbs(busy)
}

// columns is the number of columns without ratios.
const columns = 12

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
	limit, name := slices.Contains(r.Limits, subject), subject
	if c.Busy > 0 {
		name += mark
	}
	cells := []result.Cell{result.Word(p.Shape()), result.Word(name), result.Num(c.Median(measure.Sample.GBps)), result.Num(c.Median(measure.Sample.PerSecond))}
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		cells = append(cells, us(c.Lat.Quantile(q)))
	}
	if limit {
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
	if b := base(r); b != "" && subject != b && !limit {
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

package rails

import (
	"fmt"
	"math"

	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

var ops = []string{"WRITE", "READ"}

// fill makes sections and findings of what was measured.
func (s *study) fill(r *result.Result) {
	r.Sections = append(r.Sections, s.expectations())
	measured := false
	for i, run := range s.runs {
		for _, op := range ops {
			if sec, ok := s.rates(run, op, s.mem[i]); ok {
				r.Sections, measured = append(r.Sections, sec), true
			}
		}
		r.Findings = append(r.Findings, s.findings(run, s.mem[i])...)
	}
	if !measured {
		r.Sections = nil
	}
	r.Methods = append(r.Methods,
		"Each set of rails has processes of its own: options provider and devices hold GORAIL to the rails, UCX_NET_DEVICES holds UCX. The sets take turns.",
		"One transfer is in flight at a time, so small sizes show the delay of a rail and large ones its rate. GB/s are 10^9 bytes a second of data, medians of repeats.",
		"A link should give its speed less headers: 97 % for RDMA, 95 % for TCP.")
}

// expectations is what the links should give.
func (s *study) expectations() result.Section {
	t := result.Table{Title: "Rails", Keys: 2, Columns: []string{"rail", "fabric", "should give GB/s", "Gbit/s", "why"}}
	for _, l := range s.links {
		t.Rows = append(t.Rows, []result.Cell{result.Word(l.name), result.Word(l.fabric), result.Num(l.gbps), result.Num(8 * l.gbps), result.Word(l.why)})
	}
	if len(s.links) > 1 {
		all := together(s.links)
		t.Rows = append(t.Rows, []result.Cell{result.Word("all"), {}, result.Num(all), result.Num(8 * all), {}})
	}
	return result.Section{Title: "What the links should give", Tables: []result.Table{t}}
}

// points of an operation that a subject has samples of.
func points(run *measure.Run, subject, op string) (out []measure.Point) {
	for _, p := range run.Points() {
		if p.Op == op && len(run.Cell(subject, p).Samples) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func gbps(run *measure.Run, subject string, p measure.Point) float64 {
	c := run.Cell(subject, p)
	return c.Median(measure.Sample.GBps)
}

// rates are the rates of all sets by size.
func (s *study) rates(run *measure.Run, op, memory string) (result.Section, bool) {
	sec := result.Section{Title: op + ", " + memory}
	plot := result.Plot{Title: op + " over size, " + memory, X: "bytes of a transfer", Y: "GB/s", LogX: true, Bytes: true}
	t := result.Table{Title: op, Keys: 2, Columns: []string{"rails", "size", "GB/s", "Gbit/s", "share of expected", "us p50", "CPU s/GiB initiator", "target"}}
	any := false
	for _, subject := range run.Subjects {
		line := result.Line{Name: subject}
		for _, p := range points(run, subject, op) {
			c, v := run.Cell(subject, p), gbps(run, subject, p)
			row := []result.Cell{result.Word(subject), result.Word(p.Shape()), result.Num(v), result.Num(8 * v), result.Num(v / s.expected(subject)), env.Micros(&c.Lat, 0.5)}
			for i := range 2 {
				row = append(row, result.Num(c.Median(func(x measure.Sample) float64 { return x.CPUPerGiB()[i] })))
			}
			t.Rows = append(t.Rows, row)
			line.Add(float64(p.Block), v)
			any = true
		}
		plot.Lines = append(plot.Lines, line)
	}
	for _, set := range s.sets {
		if pts := points(run, set.title, op); len(pts) > 1 && !math.IsNaN(set.gbps) && (len(set.rails) == 1 && set.rails[0].name == s.links[0].name || set.title == "all") {
			l := result.Line{Name: set.title + " should give", Dashed: true}
			l.Add(float64(pts[0].Block), set.gbps)
			l.Add(float64(pts[len(pts)-1].Block), set.gbps)
			plot.Lines = append(plot.Lines, l)
		}
	}
	sec.Tables, sec.Plots = []result.Table{t}, []result.Plot{plot}
	return sec, any
}

// expected is what the rails of a subject should give.
func (s *study) expected(subject string) float64 {
	for _, set := range s.sets {
		if set.title == subject || "UCX "+set.title == subject {
			return set.gbps
		}
	}
	return unknown
}

// best returns the best rate of a single rail at a point, and the sum of all; NaN unless all were measured.
func (s *study) best(run *measure.Run, p measure.Point) (most, sum float64, name string) {
	for _, set := range s.sets {
		if len(set.rails) == 1 {
			v := gbps(run, set.title, p)
			if sum += v; v > most {
				most, name = v, set.title
			}
		}
	}
	if len(s.sets) <= len(s.links) { // the smallest effort leaves some out
		sum = unknown
	}
	return most, sum, name
}

func num(v float64) string { return measure.Num(v) }

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

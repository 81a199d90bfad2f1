package transports

import (
	"fmt"
	"math"

	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

func num(v float64) string { return measure.Num(v) }

// fill makes sections and findings.
func (s *study) fill(r *result.Result) {
	var any bool
	for _, sec := range []result.Section{s.table(), s.first(), s.loaded()} {
		if len(sec.Tables) > 0 && len(sec.Tables[0].Rows) > 0 {
			r.Sections, any = append(r.Sections, sec), true
		}
	}
	if any {
		r.Findings = append(r.Findings, s.findings()...)
	}
	r.Methods = append(r.Methods,
		"Option provider holds GORAIL to one fabric. UCX takes its own way; as \"UCX tcp\" it has UCX_TLS=tcp. \"tcp\" is a plain TCP connection whose ends spin, without NIXL.",
		"CPU seconds are of all threads, for all that was posted. Both sides poll, so a slow way costs CPU while it waits.",
		"The first transfer is 4 KiB between new processes: it connects, and its time is until the bytes are there. An engine's creation comes before and loads the plugin's libraries.",
		"The background load is a thread for each core that multiplies, at the same priority.")
}

func (s *study) names(limits bool) []string {
	if !limits {
		return s.alone.Subjects
	}
	return append(append([]string{}, s.alone.Subjects...), s.alone.Limits...)
}

func point(op string, n uint64) measure.Point {
	return measure.Point{Op: op, Block: n, Batch: 1, Depth: 1, Threads: 1}
}

// table is what each transport does.
func (s *study) table() result.Section {
	t := result.Table{Title: "Each transport", Keys: 3, Columns: []string{"transport", "operation", "size", "us p50", "p99", "GB/s", "CPU s/GiB initiator", "target"}}
	lat := result.Plot{Title: "Time of a WRITE by size", X: "bytes", Y: "us p50", LogX: true, LogY: true, Bytes: true}
	for _, name := range s.names(true) {
		line := result.Line{Name: name, Dashed: name == measure.TCP}
		for _, p := range s.alone.Points() {
			c := s.alone.Cell(name, p)
			if len(c.Samples) == 0 {
				continue
			}
			row := []result.Cell{result.Word(name), result.Word(p.Op), result.Word(p.Shape()), env.Micros(&c.Lat, 0.5), env.Micros(&c.Lat, 0.99), result.Num(c.Median(measure.Sample.GBps))}
			for i := range 2 {
				v := c.Median(func(x measure.Sample) float64 { return x.CPUPerGiB()[i] })
				if name == measure.TCP {
					v = math.NaN() // it spins
				}
				row = append(row, result.Num(v))
			}
			t.Rows = append(t.Rows, row)
			if p.Op == "WRITE" {
				line.Add(float64(p.Block), c.Lat.Quantile(0.5)/1e3)
			}
		}
		lat.Lines = append(lat.Lines, line)
	}
	return result.Section{Title: "Latency, rate and CPU time", Text: "Small transfers show the delay of a way, large ones its rate.", Tables: []result.Table{t}, Plots: []result.Plot{lat}}
}

// faster is how many times as fast one is as another: the ratio of the median times of a transfer.
func (s *study) faster(one, other string, p measure.Point) float64 {
	a, b := s.alone.Cell(one, p), s.alone.Cell(other, p)
	if a.Lat.Count() == 0 || b.Lat.Count() == 0 {
		return math.NaN()
	}
	return b.Lat.Quantile(0.5) / a.Lat.Quantile(0.5)
}

// first is the time to the first byte.
func (s *study) first() result.Section {
	t := result.Table{Title: "Until the first 4 KiB are there", Keys: 1, Columns: []string{"transport", "ms to create the engine", "ms of the first transfer"}}
	for _, name := range s.names(false) {
		if create, first, ok := s.alone.Starts(name); ok {
			t.Rows = append(t.Rows, []result.Cell{result.Word(name), result.Num(create), result.Num(first)})
		}
	}
	return result.Section{Title: "Time to the first byte", Tables: []result.Table{t}}
}

// loaded is the effect of a background load.
func (s *study) loaded() result.Section {
	t := result.Table{Title: "Beside a load on every core", Keys: 3, Columns: []string{"transport", "operation", "size", "us p50 alone", "loaded", "p99 alone", "loaded p99", "GB/s alone", "loaded GB/s", "share kept"}}
	if s.busy == nil {
		return result.Section{}
	}
	for _, name := range s.names(false) {
		for _, p := range s.busy.Points() {
			a, b := s.alone.Cell(name, p), s.busy.Cell(name, p)
			if len(a.Samples) == 0 || len(b.Samples) == 0 {
				continue
			}
			x, y := a.Median(measure.Sample.GBps), b.Median(measure.Sample.GBps)
			t.Rows = append(t.Rows, []result.Cell{result.Word(name), result.Word(p.Op), result.Word(p.Shape()), env.Micros(&a.Lat, 0.5), env.Micros(&b.Lat, 0.5),
				env.Micros(&a.Lat, 0.99), env.Micros(&b.Lat, 0.99), result.Num(x), result.Num(y), result.Num(y / x)})
		}
	}
	return result.Section{Title: "Background load", Text: "What moves bytes by hardware keeps its rate; what copies by the processor shares the cores.", Tables: []result.Table{t}}
}

// findings are the answer in words.
func (s *study) findings() (out []string) {
	base := title("tcp")
	small, big := point("WRITE", little), point("WRITE", s.large())
	for _, f := range s.fabrics[1:] {
		a, b := s.alone.Cell(title(f), small), s.alone.Cell(base, small)
		if len(a.Samples) == 0 || len(b.Samples) == 0 {
			continue
		}
		c, d := s.alone.Cell(title(f), big), s.alone.Cell(base, big)
		out = append(out, fmt.Sprintf("%s beside tcp: %s us instead of %s us for a WRITE of %s, %s GB/s instead of %s GB/s for %s (%s x as fast by the median time), %s instead of %s CPU seconds a GiB at the initiator.", title(f),
			num(a.Lat.Quantile(0.5)/1e3), num(b.Lat.Quantile(0.5)/1e3), small.Shape(), num(c.Median(measure.Sample.GBps)), num(d.Median(measure.Sample.GBps)), big.Shape(),
			num(s.faster(title(f), base, big)), num(c.Median(cpu)), num(d.Median(cpu))))
	}
	if len(s.fabrics) == 1 {
		out = append(out, "Only tcp is here: no RDMA device, and no shared memory with the peer.")
	}
	for _, pair := range [][2]string{{base, "UCX tcp"}, {base, measure.TCP}, {title(s.fabrics[len(s.fabrics)-1]), "UCX"}} {
		a, b := s.alone.Cell(pair[0], big), s.alone.Cell(pair[1], big)
		if len(a.Samples) == 0 || len(b.Samples) == 0 {
			continue
		}
		name := map[string]string{measure.TCP: "plain TCP"}[pair[1]]
		if name == "" {
			name = pair[1]
		}
		out = append(out, fmt.Sprintf("%s beside %s: %s x as fast for a WRITE of %s, %s x for %s.", pair[0], name, num(s.faster(pair[0], pair[1], big)), big.Shape(),
			num(s.faster(pair[0], pair[1], small)), small.Shape()))
	}
	if s.busy != nil {
		for _, name := range s.names(false) {
			a, b := s.alone.Cell(name, big), s.busy.Cell(name, big)
			if x, y := a.Median(measure.Sample.GBps), b.Median(measure.Sample.GBps); !math.IsNaN(y / x) {
				out = append(out, fmt.Sprintf("%s keeps %.0f %% of its rate for %s beside a load on every core.", name, 100*y/x, big.Shape()))
			}
		}
	}
	return out
}

func cpu(x measure.Sample) float64 { return x.CPUPerGiB()[0] }

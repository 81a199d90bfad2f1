package kv

import (
	"fmt"
	"math"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/result"
)

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

func num(v float64) string { return measure.Num(v) }

// fill makes sections and findings.
func (s *study) fill(r *result.Result) {
	var models []string
	for _, p := range s.phases {
		if n := len(models); n == 0 || models[n-1] != p.model.Name {
			models = append(models, p.model.Name)
		}
	}
	for _, name := range models {
		var list []*phase
		for _, p := range s.phases {
			if p.model.Name == name {
				list = append(list, p)
			}
		}
		r.Sections = append(r.Sections, section(list))
		r.Findings = append(r.Findings, findings(list)...)
	}
	r.Methods = append(r.Methods,
		"Requests arrive as a Poisson process, the same arrivals in each mode. The prefill node that is free first computes a prompt; computing is waiting here. A request has slots of blocks on both sides, whose ids are in random order and differ.",
		"Whole: one transfer when the last layer is computed. Layer by layer: one transfer for each layer when it is computed. WRITE: the prefill node writes, and a notification tells the decode node. READ: a notification tells the decode node, which reads.",
		"The time to the last block runs from when the last layer is computed until the decode node knows that all blocks are in its memory. Processes of one host share a clock. Nodes poll every 100 us when they have nothing to do, as inference engines poll between steps.",
		"Without failures the bytes of every slot are compared after each mode.",
		"Alone: single requests one after the other. The rate of arrivals is half of what that time allows, and at most 70 % of what the prefill nodes can compute, unless --rate says otherwise.")
	if s.Peer.Given() && len(s.phases) > 0 {
		r.Checks = append(r.Checks, s.clocks())
		r.Methods = append(r.Methods, "The decode nodes' clocks are compared with ours before and after each mode: the shortest of 8 round trips to each node counts. Between, both run evenly.")
	}
}

// mostWithin is how wrong a time may be without a warning. Whole requests take milliseconds.
const mostWithin = time.Millisecond

// clocks says how well the times of two hosts compare.
func (s *study) clocks() result.Check {
	text := fmt.Sprintf("the decode nodes' clocks are known within %.3g ms, and so is each time to the last block", ms(s.within))
	if s.within > mostWithin {
		return result.Check{Status: "WARN", What: "clocks", Text: text, Remedy: "take a network with shorter round trips for the study's commands, or end what fills it"}
	}
	return result.Check{Status: "PASS", What: "clocks", Text: text}
}

// section is one model: the table and the distributions.
func section(list []*phase) result.Section {
	m, sh := list[0].model, list[0].shape
	sec := result.Section{Title: m.Name, Text: fmt.Sprintf("%s. A request has %d layers of %d blocks of %s: %s MB. p99 needs %g requests, p90 %g.", m.What, sh.Layers, sh.Blocks, size(sh.Block), num(float64(sh.Bytes())/1e6), fewest(0.99), fewest(0.9))}
	t := result.Table{Title: "Time to the last block", Keys: 1, Columns: []string{"mode", "requests", "a second", "ms p50", "p90", "p99", "longest", "GB/s of one at p50", "failed", "slots compared"}}
	plot := result.Plot{Title: "Share of requests whose last block is there", X: "ms after the last layer is computed", Y: "share", LogX: true}
	for _, p := range list {
		times := p.times(nil)
		if len(times) == 0 {
			continue
		}
		n, p50 := float64(len(times)), at(times, 0.5)
		row := []result.Cell{result.Word(p.title), result.Num(n), {}}
		if p.rate > 0 {
			row[2] = result.Num(p.rate)
		}
		for _, q := range []float64{0.5, 0.9, 0.99} {
			c := result.Cell{}
			if n >= fewest(q) {
				c = result.Num(ms(at(times, q)))
			}
			row = append(row, c)
		}
		speed := result.Cell{}
		if !p.mode.layer { // layers that went before are not in that time
			speed = result.Num(float64(sh.Bytes()) / 1e9 / p50.Seconds())
		}
		row = append(row, result.Num(ms(times[len(times)-1])), speed, result.Num(float64(len(p.failures()))), result.Num(float64(p.verified)))
		t.Rows = append(t.Rows, row)
		line := result.Line{Name: p.title}
		step := max(1, len(times)/200)
		for i := 0; i < len(times); i += step {
			line.Add(max(ms(times[i]), 0.01), float64(i+1)/n)
		}
		plot.Lines = append(plot.Lines, line)
	}
	sec.Tables, sec.Plots = []result.Table{t}, []result.Plot{plot}
	return sec
}

// fewest requests have one beyond the quantile.
func fewest(q float64) float64 { return math.Round(1 / (1 - q)) }

func size(n uint64) string {
	if n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// findings are the answer for one model.
func findings(list []*phase) (out []string) {
	alone := list[0]
	out = append(out, fmt.Sprintf("%s: a request of %s MB alone has its last block after %s ms (%s GB/s).", alone.model.Name, num(float64(alone.shape.Bytes())/1e6), num(ms(alone.quantile(0.5))),
		num(float64(alone.shape.Bytes())/1e9/alone.quantile(0.5).Seconds())))
	var best *phase
	for _, p := range list[1:] {
		times := p.times(nil)
		if len(times) == 0 {
			continue
		}
		out = append(out, fmt.Sprintf("%s, %s at %s requests a second: half within %s ms, nine of ten within %s ms, all within %s ms (%d requests).", p.model.Name, p.title, num(p.rate),
			num(ms(at(times, 0.5))), num(ms(at(times, 0.9))), num(ms(times[len(times)-1])), len(times)))
		if best == nil || at(times, 0.9) < best.quantile(0.9) {
			best = p
		}
	}
	if best != nil && len(list) > 2 {
		out = append(out, fmt.Sprintf("%s: shortest for nine of ten requests: %s.", best.model.Name, best.title))
	}
	return out
}

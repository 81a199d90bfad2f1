package small

import (
	"fmt"
	"runtime"

	"gorail/gorail/measure"
	"gorail/gorail/report"
	"gorail/gorail/study/result"
)

// findings are the answer in words.
func (v *view) findings() (out []string) {
	for _, s := range v.Subjects {
		list := v.of(s, one)
		if len(list) == 0 {
			continue
		}
		first, last := list[0], list[len(list)-1]
		a, b := v.Cell(s, first), v.Cell(s, last)
		out = append(out, fmt.Sprintf("%s, one thread: %s WRITEs of %s a second (median %s us, p99 %s us), and %s of %s (median %s us, p99 %s us).", s,
			report.Num(a.Median(measure.Sample.PerSecond)), first.Shape(), us(a, 0.5), us(a, 0.99),
			report.Num(b.Median(measure.Sample.PerSecond)), last.Shape(), us(b, 0.5), us(b, 0.99)))
	}
	out = append(out, v.beside()...)
	for _, s := range v.Subjects {
		var best measure.Point
		most := 0.0
		for _, p := range v.of(s, func(p measure.Point) bool { return p.Depth == 1 && v.loaded(p.Block) }) {
			if n := v.Cell(s, p).Median(measure.Sample.PerSecond); n > most {
				best, most = p, n
			}
		}
		if most == 0 {
			continue
		}
		base := best
		base.Threads, base.Agents = 1, 0
		gain := most / v.Cell(s, base).Median(measure.Sample.PerSecond)
		text := fmt.Sprintf("%s: most small messages a second with %d threads and %d agents: %s, %s one thread.", s, best.Threads, best.Engines(), report.Num(most), result.Ratio(gain, 1))
		if best.Threads == 1 {
			text = fmt.Sprintf("%s: more threads give no more small messages a second here (%d cores, of which the target takes one).", s, runtime.NumCPU())
		}
		out = append(out, text)
	}
	return out
}

// beside compares the first backend with the last.
func (v *view) beside() (out []string) {
	if len(v.Subjects) < 2 {
		return nil
	}
	a, b := v.Subjects[0], v.Subjects[len(v.Subjects)-1]
	list := v.of(a, one)
	for _, i := range []int{0, len(list) - 1} {
		if i < 0 || len(list) == 0 || i > 0 && len(list) == 1 {
			continue
		}
		p := list[i]
		ca, cb := v.Cell(a, p), v.Cell(b, p)
		rate := measure.Ratio(ca, cb, measure.Sample.PerSecond)
		if rate.Median != rate.Median {
			continue
		}
		out = append(out, fmt.Sprintf("%s: %s moves %s %s by rate (%s .. %s in single repeats), with a p99 of %s us beside %s us.", p.Shape(), a, result.Ratio(rate.Median, 1), b,
			report.Num(rate.Low), report.Num(rate.High), us(ca, 0.99), us(cb, 0.99)))
	}
	return out
}

func us(c measure.Cell, q float64) string { return report.Num(c.Lat.Quantile(q) / 1e3) }

package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strings"
	"time"

	"gorail/gorail/measure"
)

// column is one column of a CSV.
type column struct {
	name string
	of   func(r *measure.Run, s measure.Sample) string
}

// point, number and micros are columns of a sample alone.
func point(name string, f func(p measure.Point) any) column {
	return column{name, func(_ *measure.Run, s measure.Sample) string { return fmt.Sprint(f(s.Point)) }}
}

func number(name, format string, f func(s measure.Sample) float64) column {
	return column{name, func(_ *measure.Run, s measure.Sample) string { return fmt.Sprintf(format, f(s)) }}
}

func micros(name string, f func(s measure.Sample) float64) column {
	return number(name, "%.3f", func(s measure.Sample) float64 { return f(s) / 1e3 })
}

// timed is f for samples that took time, else 0.
func timed(f func(measure.Sample) float64) func(measure.Sample) float64 {
	return func(s measure.Sample) float64 {
		if s.Wall == 0 {
			return 0
		}
		return f(s)
	}
}

var columns = []column{
	{"backend", func(_ *measure.Run, s measure.Sample) string { return s.Subject }},
	{"repeat", func(_ *measure.Run, s measure.Sample) string { return fmt.Sprint(s.Repeat) }},
	point("op", func(p measure.Point) any { return p.Op }),
	point("block_bytes", func(p measure.Point) any { return p.Block }),
	point("batch", func(p measure.Point) any { return p.Batch }),
	point("depth", func(p measure.Point) any { return p.Depth }),
	point("threads", func(p measure.Point) any { return p.Threads }),
	point("agents", func(p measure.Point) any { return p.Engines() }),
	point("dense", func(p measure.Point) any { return p.Dense }),
	point("ids", func(p measure.Point) any { return p.IDs }),
	point("busy", func(p measure.Point) any { return p.Busy }),
	{"transfers", func(_ *measure.Run, s measure.Sample) string { return fmt.Sprint(s.Done) }},
	number("seconds", "%.6f", func(s measure.Sample) float64 { return s.Wall.Seconds() }),
	number("gb_per_second", "%.4f", timed(measure.Sample.GBps)),
	number("transfers_per_second", "%.1f", timed(measure.Sample.PerSecond)),
	micros("us_mean", func(s measure.Sample) float64 { return s.Lat.Mean() }),
	micros("us_p50", func(s measure.Sample) float64 { return s.Lat.Quantile(0.5) }),
	micros("us_p90", func(s measure.Sample) float64 { return s.Lat.Quantile(0.9) }),
	micros("us_p99", func(s measure.Sample) float64 { return s.Lat.Quantile(0.99) }),
	micros("us_p999", func(s measure.Sample) float64 { return s.Lat.Quantile(0.999) }),
	micros("us_max", func(s measure.Sample) float64 { return float64(s.Lat.Max) }),
	micros("us_in_post_p50", func(s measure.Sample) float64 { return s.Post.Quantile(0.5) }),
	micros("us_in_post_p99", func(s measure.Sample) float64 { return s.Post.Quantile(0.99) }),
	micros("us_to_make", func(s measure.Sample) float64 { return float64(s.Make) }),
	micros("us_in_make_p50", func(s measure.Sample) float64 { return s.Makes.Quantile(0.5) }),
	micros("us_in_make_p99", func(s measure.Sample) float64 { return s.Makes.Quantile(0.99) }),
	number("cpu_seconds_initiator", "%.6f", func(s measure.Sample) float64 { return s.CPU[0].Seconds() }),
	number("cpu_seconds_target", "%.6f", func(s measure.Sample) float64 { return s.CPU[1].Seconds() }),
	kernel("launches_alone_initiator", func(k *measure.Kernels) float64 { return k.Alone[0] }),
	kernel("launches_alone_target", func(k *measure.Kernels) float64 { return k.Alone[1] }),
	kernel("launches_initiator", func(k *measure.Kernels) float64 { return k.With[0] }),
	kernel("launches_target", func(k *measure.Kernels) float64 { return k.With[1] }),
	{"verified", func(_ *measure.Run, s measure.Sample) string { return fmt.Sprint(s.Verified) }},
	{"failed", func(_ *measure.Run, s measure.Sample) string { return s.Failed }},
	{"when", func(r *measure.Run, _ measure.Sample) string { return r.When.Format(time.RFC3339) }},
	{"machine", func(r *measure.Run, _ measure.Sample) string {
		return strings.Join(append([]string{r.Machine}, r.GPUs...), "; ")
	}},
	{"versions", func(r *measure.Run, _ measure.Sample) string { return r.Versions }},
	{"setup", func(r *measure.Run, _ measure.Sample) string { return r.Setup }},
	{"command", func(r *measure.Run, _ measure.Sample) string { return r.Command }},
}

// kernel is a column of launches a second; empty without a load.
func kernel(name string, f func(*measure.Kernels) float64) column {
	return column{name, func(_ *measure.Run, s measure.Sample) string {
		if s.Kernels == nil {
			return ""
		}
		return fmt.Sprintf("%.1f", f(s.Kernels))
	}}
}

// CSV writes one line per sample, in plain units.
func CSV(w io.Writer, r *measure.Run) error {
	c := csv.NewWriter(w)
	row := make([]string, len(columns))
	for i, col := range columns {
		row[i] = col.name
	}
	_ = c.Write(row)
	for _, s := range r.Samples {
		for i, col := range columns {
			row[i] = col.of(r, s)
		}
		_ = c.Write(row)
	}
	c.Flush()
	return c.Error()
}

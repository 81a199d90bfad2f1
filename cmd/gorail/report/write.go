package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"gorail/cmd/gorail/measure"
)

// Text writes tables for a terminal.
func Text(w io.Writer, r *measure.Run) error {
	fmt.Fprintf(w, "%s\n%s\n%s\n", r.Machine, r.Versions, r.Setup)
	for _, t := range Tables(r) {
		fmt.Fprintf(w, "\n%s\n", t.Title)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, cells := range append([][]string{t.Head}, t.Rows...) {
			fmt.Fprintf(tw, "%s\t\n", strings.Join(cells, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// JSON writes a run for gorail page and gorail report.
func JSON(w io.Writer, r *measure.Run) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// CSV writes one line per sample, in plain units.
func CSV(w io.Writer, r *measure.Run) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"backend", "repeat", "op", "block_bytes", "batch", "depth", "threads", "dense", "transfers", "seconds", "gb_per_second",
		"transfers_per_second", "us_mean", "us_p50", "us_p99", "us_p999", "us_max", "us_in_post_p50", "us_in_post_p99", "us_to_make",
		"cpu_seconds_initiator", "cpu_seconds_target", "verified", "failed"})
	for _, s := range r.Samples {
		us := func(ns float64) string { return fmt.Sprintf("%.3f", ns/1e3) }
		p, perSecond, gbps := s.Point, 0.0, 0.0
		if s.Wall > 0 {
			perSecond, gbps = s.PerSecond(), s.GBps()
		}
		_ = c.Write([]string{s.Subject, fmt.Sprint(s.Repeat), p.Op, fmt.Sprint(p.Block), fmt.Sprint(p.Batch), fmt.Sprint(p.Depth), fmt.Sprint(p.Threads),
			fmt.Sprint(p.Dense), fmt.Sprint(s.Done), fmt.Sprintf("%.6f", s.Wall.Seconds()), fmt.Sprintf("%.4f", gbps), fmt.Sprintf("%.1f", perSecond),
			us(s.Lat.Mean()), us(s.Lat.Quantile(0.5)), us(s.Lat.Quantile(0.99)), us(s.Lat.Quantile(0.999)), us(float64(s.Lat.Max)),
			us(s.Post.Quantile(0.5)), us(s.Post.Quantile(0.99)), us(float64(s.Make)),
			fmt.Sprintf("%.6f", s.CPU[0].Seconds()), fmt.Sprintf("%.6f", s.CPU[1].Seconds()), fmt.Sprint(s.Verified), s.Failed})
	}
	c.Flush()
	return c.Error()
}

// Markdown writes a table for a page.
func Markdown(w io.Writer, t Table) {
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	fmt.Fprintf(w, "#### %s\n\n", t.Title)
	line(t.Head)
	fmt.Fprintf(w, "| ---%s |\n", strings.Repeat(" | ---:", len(t.Head)-1))
	for _, r := range t.Rows {
		line(append(r, make([]string, max(0, len(t.Head)-len(r)))...))
	}
	fmt.Fprintln(w)
}

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// quantile of values, which it sorts.
func quantile[T cmp.Ordered](v []T, q float64) (out T) {
	if len(v) == 0 {
		return out
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// num prints three significant digits.
func num(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.01:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}

func us(ns int64) string { return num(float64(ns) / 1e3) }

// table prints a markdown table.
func table(b *strings.Builder, head []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	line(rule)
	for _, r := range rows {
		line(r)
	}
	b.WriteString("\n")
}

func (c *config) transferTables(shapes []shape, got map[key]*sample) string {
	var b strings.Builder
	base := c.backends[len(c.backends)-1]
	for _, pt := range c.progress {
		for _, op := range c.ops {
			fmt.Fprintf(&b, "### %s, progress thread %s\n\n", op, map[string]string{"0": "off", "1": "on"}[pt])
			var rows [][]string
			for _, sh := range shapes {
				ref := got[key{setting{base, pt == "1"}, op, sh.name}]
				for _, be := range c.backends {
					rows = append(rows, c.transferRow(sh, be, got[key{setting{be, pt == "1"}, op, sh.name}], ref))
				}
			}
			table(&b, []string{"transfer", "backend", "GB/s", "us p50", "us p99", "us in post p50",
				"CPU s/GiB initiator", "target", "rate to " + c.title(base), "p99 to " + c.title(base)}, rows)
		}
	}
	return b.String()
}

func (c *config) transferRow(sh shape, backend string, s, ref *sample) []string {
	row := []string{sh.name, c.title(backend)}
	if s == nil || len(s.lat) == 0 {
		why := "no result"
		if s != nil && s.failed != "" {
			why = s.failed
		}
		return append(row, why, "", "", "", "", "", "", "")
	}
	p99 := quantile(s.lat, 0.99)
	row = append(row, num(median(s.rate)), us(quantile(s.lat, 0.5)), us(p99), us(quantile(s.post, 0.5)),
		num(median(s.cpuI)), num(median(s.cpuT)))
	if ref == nil || len(ref.lat) == 0 {
		return append(row, "", "")
	}
	return append(row, num(median(s.rate)/median(ref.rate)), num(float64(p99)/float64(quantile(ref.lat, 0.99))))
}

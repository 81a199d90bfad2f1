package result

import (
	"fmt"
	"math"
	"strings"
)

// noise is the change below which two numbers count as equal: repeats of a study differ by as much.
const noise = 0.05

// Diff compares two results of one study number by number. Tables are matched by section and title, rows by their keys.
func Diff(a, b *Result) (*Result, error) {
	if a.Study != b.Study {
		return nil, fmt.Errorf("one is a result of study %s, the other of study %s: compare results of one study", a.Study, b.Study)
	}
	out := &Result{Version: Version, Study: "diff", Title: "Difference of two runs: " + b.Title, Asked: "What changed from the first run to the second?",
		When: b.When, Machine: b.Machine, Versions: b.Versions, Setup: b.Setup}
	for _, x := range []struct {
		what, a, b string
	}{{"machine", a.Machine, b.Machine}, {"versions", a.Versions, b.Versions}, {"setup", a.Setup, b.Setup}, {"command", a.Command, b.Command}} {
		status, text := "PASS", "the same: "+x.a
		if x.a != x.b {
			status, text = "WARN", x.a+" / "+x.b
		}
		out.Checks = append(out.Checks, Check{Status: status, What: x.what, Text: text})
	}
	better, worse, same, alone := 0, 0, 0, 0
	for _, s := range b.Sections {
		d := Section{Title: s.Title}
		for _, t := range s.Tables {
			old := find(a, s.Title, t.Title)
			if old == nil {
				alone += len(t.Rows)
				continue
			}
			table, counts := tables(old, &t)
			better, worse, same, alone = better+counts[0], worse+counts[1], same+counts[2], alone+counts[3]
			if len(table.Rows) > 0 {
				d.Tables = append(d.Tables, table)
			}
		}
		if len(d.Tables) > 0 {
			out.Sections = append(out.Sections, d)
		}
	}
	out.Findings = append(out.Findings, fmt.Sprintf("%d numbers are better, %d worse, %d the same within %.0f %%.", better, worse, same, 100*noise))
	if alone > 0 {
		out.Findings = append(out.Findings, fmt.Sprintf("%d rows are in one run alone.", alone))
	}
	out.Methods = append(out.Methods, fmt.Sprintf("first: %s, %s", a.When.Format("2 January 2006 15:04 MST"), a.Command), fmt.Sprintf("second: %s, %s", b.When.Format("2 January 2006 15:04 MST"), b.Command),
		"Ratios of runs at different times carry the machine's changes, too. Ratios within one run are safer.")
	return out, nil
}

func find(r *Result, section, title string) *Table {
	for _, s := range r.Sections {
		for i, t := range s.Tables {
			if s.Title == section && t.Title == title {
				return &s.Tables[i]
			}
		}
	}
	return nil
}

// key names a row.
func (t *Table) key(row []Cell) string {
	var parts []string
	for _, c := range row[:min(t.Keys, len(row))] {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, " ")
}

// tables compares the numbers of two tables. The counts are of better, worse and equal numbers, and of rows in one table alone.
func tables(a, b *Table) (out Table, counts [4]int) {
	out = Table{Title: b.Title, Keys: 2, Columns: Columns("row", "number", "first", "second", "second / first", "change")}
	rows := map[string][]Cell{}
	for _, r := range a.Rows {
		rows[a.key(r)] = r
	}
	for _, r := range b.Rows {
		old, ok := rows[b.key(r)]
		if !ok {
			counts[3]++
			continue
		}
		delete(rows, b.key(r))
		for i, c := range r {
			if i < b.Keys || i >= len(b.Columns) || c.Value == nil {
				continue
			}
			was := column(a, old, b.Columns[i].Name)
			if was == nil {
				continue
			}
			ratio, verdict := *c.Value / *was, "same"
			switch {
			case *c.Value == *was || math.Abs(ratio-1) <= noise:
				counts[2]++
			case (ratio > 1) == (b.Columns[i].Better == "more") && b.Columns[i].Better != "":
				verdict = "better"
				counts[0]++
			case b.Columns[i].Better != "":
				verdict = "worse"
				counts[1]++
			default:
				verdict = "differs"
			}
			out.Rows = append(out.Rows, []Cell{Word(b.key(r)), Word(b.Columns[i].Name), Num(*was), Num(*c.Value), Num(ratio), Word(verdict)})
		}
	}
	counts[3] += len(rows)
	return out, counts
}

func column(t *Table, row []Cell, name string) *float64 {
	for i, c := range t.Columns {
		if c.Name == name && i < len(row) {
			return row[i].Value
		}
	}
	return nil
}

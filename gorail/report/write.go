package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"gorail/gorail/measure"
)

// Text writes tables for a terminal.
func Text(w io.Writer, r *measure.Run) error {
	fmt.Fprintf(w, "%s\n%s\n%s\n", strings.Join(append([]string{r.Machine}, r.GPUs...), "; "), r.Versions, r.Setup)
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

// MD writes a run as a page: machine, versions, settings, command, tables.
func MD(w io.Writer, r *measure.Run) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "### %s\n\n%s\n\n%s", r.Title, machine(r), how(r))
	for _, t := range Tables(r) {
		Markdown(&b, t)
	}
	_, err := w.Write(b.Bytes())
	return err
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

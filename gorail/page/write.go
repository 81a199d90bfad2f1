// Package page writes what a study or a benchmark has found: JSON, Markdown, and one HTML page that needs no other file.
package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"gorail/gorail/result"
)

// Formats are the formats of a result.
var Formats = []string{"json", "md", "html"}

// Of writes a result in each of Formats.
func Of(r *result.Result) Writers {
	return Writers{
		"json": func(w io.Writer) error { return JSON(w, r) },
		"md":   func(w io.Writer) error { return Markdown(w, r) },
		"html": func(w io.Writer) error { return HTML(w, r) },
	}
}

// JSON writes v, which readers of other programs read.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(v)
}

// Markdown writes the page without plots.
func Markdown(w io.Writer, r *result.Result) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n", r.Title)
	if r.Asked != "" {
		fmt.Fprintf(&b, "%s\n\n", r.Asked)
	}
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "## %s\n\n", title)
		for _, l := range lines {
			fmt.Fprintf(&b, "- %s\n", oneLine(l))
		}
		b.WriteByte('\n')
	}
	if r.Ended != "" {
		fmt.Fprintf(&b, "**Ended early: %s**\n\n", oneLine(r.Ended))
	}
	list("Findings", r.Findings)
	list("Not measured", r.Failed)
	list("Checked first", checks(r))
	for _, s := range r.Sections {
		fmt.Fprintf(&b, "## %s\n\n", s.Title)
		if s.Text != "" {
			fmt.Fprintf(&b, "%s\n\n", s.Text)
		}
		for _, t := range s.Tables {
			markdownTable(&b, t)
		}
	}
	list("Methods and machine", footer(r))
	_, err := w.Write(b.Bytes())
	return err
}

func markdownTable(b *bytes.Buffer, t result.Table) {
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	if t.Title != "" {
		fmt.Fprintf(b, "### %s\n\n", t.Title)
	}
	var head, rule []string
	for i, c := range t.Columns {
		head = append(head, c)
		rule = append(rule, map[bool]string{true: "---", false: "---:"}[i < t.Keys])
	}
	line(head)
	line(rule)
	for _, r := range t.Rows {
		cells := make([]string, len(t.Columns))
		for i, c := range r[:min(len(r), len(cells))] {
			cells[i] = strings.ReplaceAll(oneLine(c.String()), "|", "\\|")
		}
		line(cells)
	}
	b.WriteByte('\n')
}

func checks(r *result.Result) (out []string) {
	for _, c := range r.Checks {
		line := c.Status + " " + c.What + ": " + c.Text
		if c.Remedy != "" {
			line += "; remedy: " + c.Remedy
		}
		out = append(out, line)
	}
	return out
}

// footer says how and where the numbers were made.
func footer(r *result.Result) (out []string) {
	add := func(name, text string) {
		if text != "" {
			out = append(out, name+": "+text)
		}
	}
	out = append(out, r.Methods...)
	add("Setup", r.Setup)
	add("Machine", r.Machine)
	add("Versions", r.Versions)
	add("Command", r.Command)
	add("When", r.When.Format("2 January 2006 15:04 MST"))
	if r.Took > 0 {
		add("Took", r.Took.Round(100_000_000).String())
	}
	return out
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Style says how a report is written.
type Style struct {
	Hints  bool // with the commands of remedies
	Quiet  bool // without what is well
	Colour bool
}

// colours are those of terminals.
var colours = map[Status]string{Pass: "32", Warn: "33", Fail: "1;31"}

// Text writes one line a check. What is wrong comes last: there a reader looks.
func (r *Report) Text(w io.Writer, style Style) error {
	var b strings.Builder
	count, first := map[Status]int{}, ""
	for _, status := range []Status{Pass, Warn, Fail} {
		for _, c := range r.Checks {
			if c.Status != status {
				continue
			}
			if count[status]++; status == Fail && count[status] == 1 {
				first = "; begin with " + c.ID
			}
			if status != Pass || !style.Quiet {
				c.write(&b, style)
			}
		}
	}
	fmt.Fprintf(&b, "%d passed, %d warnings, %d failed%s\n", count[Pass], count[Warn], count[Fail], first)
	_, err := io.WriteString(w, b.String())
	return err
}

func (c Check) write(b *strings.Builder, style Style) {
	status := string(c.Status)
	if style.Colour {
		status = "\x1b[" + colours[c.Status] + "m" + status + "\x1b[0m"
	}
	fmt.Fprintf(b, "%s %-14s %s", status, c.ID, oneLine(c.Text))
	if c.Remedy != "" {
		fmt.Fprintf(b, "; remedy: %s", oneLine(c.Remedy))
	}
	b.WriteByte('\n')
	if style.Hints && c.Status != Pass {
		for _, line := range c.Commands {
			fmt.Fprintf(b, "     $ %s\n", line)
		}
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

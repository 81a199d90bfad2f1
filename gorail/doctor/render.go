package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Text writes one line a check. hints adds the commands of remedies.
func (r *Report) Text(w io.Writer, hints bool) error {
	var b strings.Builder
	count := map[Status]int{}
	for _, c := range r.Checks {
		count[c.Status]++
		fmt.Fprintf(&b, "%s %-14s %s", c.Status, c.ID, oneLine(c.Text))
		if c.Remedy != "" {
			fmt.Fprintf(&b, "; remedy: %s", oneLine(c.Remedy))
		}
		b.WriteByte('\n')
		if hints && c.Status != Pass {
			for _, line := range c.Commands {
				fmt.Fprintf(&b, "     $ %s\n", line)
			}
		}
	}
	fmt.Fprintf(&b, "%d passed, %d warnings, %d failed\n", count[Pass], count[Warn], count[Fail])
	_, err := io.WriteString(w, b.String())
	return err
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

package limits

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed page.md
var page string

// Markdown returns the text of docs/limits.md: page.md with the table.
func Markdown() []byte {
	var rows strings.Builder
	for _, r := range List {
		set := r.Why
		if r.Option != "" {
			set = "[`" + r.Option + "`](options.md)"
		}
		counter := "-"
		if r.Counter != "" {
			counter = "`" + r.Counter + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Resource, r.Bound, set, r.Beyond, counter, r.Where, r.Test)
	}
	return []byte(strings.Replace(page, "{{rows}}\n", rows.String(), 1))
}

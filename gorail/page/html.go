package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"gorail/gorail/result"
)

//go:embed page.html
var source string

var tmpl = template.Must(template.New("page").Funcs(template.FuncMap{
	"svg": SVG,
	"key": func(t result.Table, i int) bool { return i < t.Keys },
	"column": func(t result.Table, i int) string {
		if i < len(t.Columns) {
			return t.Columns[i]
		}
		return ""
	},
	"legend": legend,
	"footer": func(r *result.Result) []string { return footer(r) },
	"class": func(status string) string {
		return map[string]string{"PASS": "pass", "WARN": "warn", "FAIL": "fail"}[status]
	},
	"passed": func(r *result.Result) (n int) {
		for _, c := range r.Checks {
			if c.Status == "PASS" {
				n++
			}
		}
		return n
	},
}).Parse(source))

// HTML writes one page without scripts and without references to other files. It follows prefers-color-scheme.
func HTML(w io.Writer, r *result.Result) error {
	var b bytes.Buffer
	if err := tmpl.Execute(&b, r); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

package option

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed page.md
var page string

// Markdown returns the text of docs/options.md: page.md with its two tables.
func Markdown() []byte {
	var options, parameters strings.Builder
	for _, r := range table {
		fmt.Fprintf(&options, "| `%s` | `%s` | %s | %s | %s | %s |\n", r.Name, r.Env, shown(r.Default), r.Doc, r.When, r.Range)
	}
	for _, a := range aliases {
		var sets, nothing []string
		for _, p := range a.params {
			text := "`" + p.name + "`"
			if p.def != "" {
				text += " (`" + p.def + "`)"
			}
			if p.name == "engine_config" {
				sets = append(sets, text+" (below)")
			} else if p.to == "" {
				nothing = append(nothing, text)
			} else {
				sets = append(sets, text+" sets `"+p.to+"`")
			}
		}
		fmt.Fprintf(&parameters, "| %s | %s | %s |\n", a.Name, strings.Join(sets, ", "), strings.Join(nothing, ", "))
	}
	return []byte(strings.NewReplacer("{{options}}\n", options.String(), "{{aliases}}\n", parameters.String()).Replace(page))
}

// shown formats a default.
func shown(def string) string {
	if def == "" {
		return "(empty)"
	}
	return "`" + def + "`"
}

package option

import (
	"bytes"
	"fmt"
)

// Markdown gives the text of docs/options.md.
func Markdown() []byte {
	var b bytes.Buffer
	b.WriteString(`# Options

<!-- Made from backend/option/table.go by "go run ./backend/option/gen". Don't edit. -->

Give an option as a parameter of the backend (` + "`create_backend(\"GORAIL\", {\"xfer_timeout\": \"10s\"})`" + `) or as an environment
variable. A parameter beats the environment, the environment beats the default. A parameter that is just the default counts as
not given, and so does an empty value. A parameter that GORAIL doesn't know is an error that names the nearest option, or under another backend's
name (below) a warning. A GORAIL_ variable that nothing reads is a warning, too.

| option | environment | type | default | meaning | allowed |
|---|---|---|---|---|---|
`)
	for _, r := range table {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", r.Name, r.Env, r.Type, shown(r.Default), r.Doc, r.Range)
	}
	b.WriteString(`
## Under another backend's name

A plugin file of another name (` + "`gorail plugins --as UCX`" + `) takes these parameters of that backend beside all of the above. Those that set
` + "`devices` or `control_devices`" + ` are lists of devices, those that set ` + "`copy_threads`" + ` are numbers, of which more than 15 are 15; the option, where it is
given itself, goes before. The others are ignored; those that were given another value than the one shown are named in one INFO line.

| name | parameter | shown as | sets |
|---|---|---|---|
`)
	for _, a := range aliases {
		for _, p := range a.params {
			to := "nothing"
			if p.to != "" {
				to = "`" + p.to + "`"
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", a.Name, p.name, shown(p.def), to)
		}
	}
	return b.Bytes()
}

// shown writes a default.
func shown(def string) string {
	if def == "" {
		return "(empty)"
	}
	return "`" + def + "`"
}

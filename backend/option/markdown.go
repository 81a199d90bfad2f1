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
not given, and so does an empty value. Names that GORAIL doesn't know are ignored.

| option | environment | type | default | meaning | allowed |
|---|---|---|---|---|---|
`)
	for _, r := range table {
		def := "(empty)"
		if r.Default != "" {
			def = "`" + r.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", r.Name, r.Env, r.Type, def, r.Doc, r.Range)
	}
	return b.Bytes()
}

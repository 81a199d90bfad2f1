// Command pages writes the pages of docs that are made from tables in the code and from tests. Run it anywhere in the module:
// go run ./internal/pages
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/internal/proved"
)

var pages = map[string]func() []byte{"errors.md": errcode.Markdown, "limits.md": limits.Markdown, "options.md": option.Markdown}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// run finds the module's root above the working directory and writes the pages.
func run() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			return fmt.Errorf("no go.mod above the working directory: run pages inside the module")
		}
		dir = up
	}
	table, err := proved.Markdown(dir)
	if err != nil {
		return err
	}
	pages["proved.md"] = func() []byte { return table }
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, "docs", name), text(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

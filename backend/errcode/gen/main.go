// Command gen writes docs/errors.md from the table of error codes. Run it anywhere in the module: go run ./backend/errcode/gen
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"gorail/backend/errcode"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run finds the module's root above the working directory and writes docs/errors.md.
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
			return fmt.Errorf("no go.mod above the working directory: run gen inside the module")
		}
		dir = up
	}
	return os.WriteFile(filepath.Join(dir, "docs", "errors.md"), errcode.Markdown(), 0o644)
}

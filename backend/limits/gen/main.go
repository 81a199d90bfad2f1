// Command gen writes docs/limits.md from the list of bounds. Run it anywhere in the module: go run ./backend/limits/gen
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"gorail/backend/limits"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run finds the module's root above the working directory and writes docs/limits.md.
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
	return os.WriteFile(filepath.Join(dir, "docs", "limits.md"), limits.Markdown(), 0o644)
}

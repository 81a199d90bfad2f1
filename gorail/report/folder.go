package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gorail/gorail/measure"
)

// Folder writes all results of runs into a folder: report.md with every table, and plots.
func Folder(dir string, runs []*measure.Run) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Runs of gorail bench\n\n")
	for i, r := range runs {
		name := fmt.Sprintf("%d-%s", i+1, slug(r.Title))
		fmt.Fprintf(&b, "## %s\n\n%s %s", r.Title, machine(r), how(r))
		plots, err := Plots(filepath.Join(dir, "plots"), name, r)
		if err != nil {
			return err
		}
		for _, f := range plots {
			fmt.Fprintf(&b, "![%s](plots/%s)\n\n", f.Title, filepath.Base(f.Path))
		}
		for _, t := range Tables(r) {
			Markdown(&b, t)
		}
	}
	return os.WriteFile(filepath.Join(dir, "report.md"), b.Bytes(), 0o644)
}

// slug converts a title to a part of a file name.
func slug(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s), "-")
}

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/report"
	"gorail/cmd/gorail/side"
)

// pageCommand makes the generated part of a page anew.
func pageCommand() *cobra.Command {
	var page, plots string
	c := &cobra.Command{
		Use:   "page --page FILE --plots FOLDER RUN.json...",
		Short: "Write runs of gorail bench --json between the marks of a page, with plots",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			var runs []*measure.Run
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					return err
				}
				r := &measure.Run{}
				if err := json.Unmarshal(text, r); err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
				runs = append(runs, r)
			}
			return report.Page(page, plots, runs)
		},
	}
	c.Flags().StringVar(&page, "page", "docs/benchmarks.md", "the page")
	c.Flags().StringVar(&plots, "plots", "docs/plots", "folder for the plots")
	return c
}

// sideCommand is one process of a benchmark; gorail bench starts it.
func sideCommand() *cobra.Command {
	return &cobra.Command{Use: side.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return side.Main() }}
}

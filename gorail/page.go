package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gorail/gorail/measure"
	"gorail/gorail/report"
	"gorail/gorail/side"
)

// reportCommand writes all results of runs into a folder.
func reportCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "report --dir FOLDER RUN.json...",
		Short: "Write tables and plots of runs of gorail bench --json into a folder",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			runs, err := readRuns(files)
			if err != nil {
				return err
			}
			return report.Folder(dir, runs)
		},
	}
	c.Flags().StringVar(&dir, "dir", "build/bench", "the folder")
	return c
}

// pageCommand regenerates the generated part of a page.
func pageCommand() *cobra.Command {
	var page string
	c := &cobra.Command{
		Use:   "page --page FILE RUN.json...",
		Short: "Write a compact table of runs of gorail bench --json between the marks of a page",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			runs, err := readRuns(files)
			if err != nil {
				return err
			}
			return report.Page(page, runs)
		},
	}
	c.Flags().StringVar(&page, "page", "docs/benchmarks.md", "the page")
	return c
}

// readRuns reads files of gorail bench --json.
func readRuns(files []string) (runs []*measure.Run, err error) {
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		r := &measure.Run{}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// sideCommand is one process of a benchmark. gorail bench starts it.
func sideCommand() *cobra.Command {
	return &cobra.Command{Use: side.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return side.Main() }}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gorail/gorail/measure"
	"gorail/gorail/report"
)

var formats = map[string]func(io.Writer, *measure.Run) error{"table": report.Text, "json": report.JSON, "md": report.MD}

// sink is one output of a run.
type sink struct {
	format, path string // path "": standard output
}

// sinks parses --output and --json. A file that cannot be written is an error now, before anything is measured.
func (o *benchFlags) sinks() (out []sink, err error) {
	if o.json != "" {
		out = append(out, sink{"json", o.json})
	}
	for _, word := range o.output {
		format, path, named := strings.Cut(word, "=")
		if formats[format] == nil || named && path == "" {
			return nil, fmt.Errorf("--output %q: want table, json or md, alone for standard output or with a file: json=run.json", word)
		}
		out = append(out, sink{format, path})
	}
	for _, s := range out {
		if s.path == "" {
			continue
		}
		f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("--output %s: %w", s.format, err)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// write writes a run to all sinks. If one fails, the run is kept: on standard output and in a file of the folder for temporary files.
func write(sinks []sink, stdout io.Writer, r *measure.Run) error {
	var failed []error
	shown := false
	for _, s := range sinks {
		var err error
		if s.path == "" {
			err, shown = formats[s.format](stdout, r), true
		} else {
			err = report.WriteFile(s.path, func(w io.Writer) error { return formats[s.format](w, r) })
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s is not written: %w", s.format, err))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	if !shown {
		failed = append(failed, report.Text(stdout, r))
	}
	return errors.Join(append(failed, keep(r))...)
}

// keep writes a run to a temporary file, and returns an error that names it.
func keep(r *measure.Run) error {
	path, err := report.Keep("gorail-bench-*.json", func(w io.Writer) error { return report.JSON(w, r) })
	if err != nil {
		return fmt.Errorf("nor can the run be kept in %s: %w", os.TempDir(), err)
	}
	return fmt.Errorf("the run is in %s: gorail report and gorail page read it", path)
}

package study

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gorail/gorail/report"
	"gorail/gorail/study/page"
	"gorail/gorail/study/result"
)

// sink is one output of a study.
type sink struct {
	format, path string // path "-": standard output
	write        func(io.Writer, *result.Result) error
}

// open parses --output. A file that cannot be written is an error now, before anything is measured.
func open(name string, words []string) (out []sink, err error) {
	for _, word := range words {
		format, path, named := strings.Cut(word, "=")
		s := sink{format: format, path: path}
		if !named {
			s.path = "gorail-study-" + name + "." + format
		}
		for _, f := range page.Formats {
			if f.Name == format {
				s.write = f.Write
			}
		}
		if s.write == nil || s.path == "" {
			return nil, fmt.Errorf("--output %q: want json, md or html, alone or with a file: html=page.html", word)
		}
		out = append(out, s)
		if s.path == "-" {
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

// write writes a result to all sinks, and the findings to standard output unless a sink has it. If a sink fails, the result is kept in
// the folder for temporary files.
func write(sinks []sink, stdout, log io.Writer, r *result.Result) error {
	var failed []error
	taken := false
	for _, s := range sinks {
		var err error
		if s.path == "-" {
			err, taken = s.write(stdout, r), true
		} else if err = report.WriteFile(s.path, func(w io.Writer) error { return s.write(w, r) }); err == nil {
			fmt.Fprintf(log, "wrote %s\n", s.path)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s is not written to %s: %w", s.format, s.path, err))
		}
	}
	if !taken {
		for _, f := range r.Findings {
			fmt.Fprintf(stdout, "- %s\n", f)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return errors.Join(append(failed, keep(r))...)
}

// keep writes a result to a temporary file, and returns an error that names it.
func keep(r *result.Result) error {
	path, err := report.Keep("gorail-study-*.json", func(w io.Writer) error { return page.JSON(w, r) })
	if err != nil {
		return fmt.Errorf("nor can the result be kept in %s: %w", os.TempDir(), err)
	}
	return fmt.Errorf("the result is in %s: gorail study show writes its page", path)
}

// discard removes files that open made and that nothing was written to.
func discard(sinks []sink) {
	for _, s := range sinks {
		if st, err := os.Stat(s.path); s.path != "-" && err == nil && st.Mode().IsRegular() && st.Size() == 0 {
			_ = os.Remove(s.path)
		}
	}
}

package page

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"gorail/gorail/cli"
)

// Flags are the flags of what is written, and where.
type Flags struct {
	output     []string
	json, html string
}

// Add defines them. formats are those of --output.
func (o *Flags) Add(f *pflag.FlagSet, formats []string, help string) {
	f.StringSliceVarP(&o.output, "output", "o", formats, help)
	f.StringVar(&o.json, "json", "", "a `file`: short for --output json=FILE; - is standard output")
	f.StringVar(&o.html, "html", "", "a `file`: short for --output html=FILE")
}

// Words are those for Open.
func (o *Flags) Words() []string {
	words := slices.Clone(o.output)
	if o.json != "" {
		words = append(words, "json="+o.json)
	}
	if o.html != "" {
		words = append(words, "html="+o.html)
	}
	return words
}

// Sink is one output: a format, and where it goes.
type Sink struct {
	Format, Path string // Path "-": standard output
}

// Writers write one document, by format. The one of html writes what is kept when a disk is full.
type Writers map[string]func(io.Writer) error

// Open parses --output: formats, alone or with a file. path names the file of a format alone. A file that cannot be written is an error now,
// before anything is measured.
func Open(words, formats []string, path func(format string) string) (out []Sink, err error) {
	for _, word := range words {
		format, file, named := strings.Cut(word, "=")
		if !named {
			file = path(format)
		}
		if !slices.Contains(formats, format) || file == "" {
			return nil, cli.Usage("--output %q: want %s, alone or with a file: json=run.json", word, strings.Join(formats, ", "))
		}
		out = append(out, Sink{format, file})
		if file == "-" {
			continue
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("--output %s: %w", format, err)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Write writes a document to all sinks. If one fails, its page is kept in the folder for temporary files, and the error names it.
func Write(sinks []Sink, stdout, log io.Writer, w Writers) error {
	var failed []error
	for _, s := range sinks {
		var err error
		if s.Path == "-" {
			err = w[s.Format](stdout)
		} else if err = writeFile(s.Path, w[s.Format]); err == nil {
			fmt.Fprintf(log, "wrote %s\n", s.Path)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s is not written to %s: %w", s.Format, s.Path, err))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	path, err := keep(w["html"])
	if err != nil {
		err = fmt.Errorf("nor can the page be kept in %s: %w", os.TempDir(), err)
	} else {
		err = fmt.Errorf("the page is kept in %s", path)
	}
	return errors.Join(append(failed, err)...)
}

// Discard removes files that Open made and that nothing was written to.
func Discard(sinks []Sink) {
	for _, s := range sinks {
		if st, err := os.Stat(s.Path); s.Path != "-" && err == nil && st.Mode().IsRegular() && st.Size() == 0 {
			_ = os.Remove(s.Path)
		}
	}
}

// writeFile writes a file with f: all of it or, if that fails, nothing. What is not a regular file is written as it is.
func writeFile(path string, f func(io.Writer) error) error {
	if st, err := os.Stat(path); err == nil && st.Mode().Type() != 0 {
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(f(w), w.Close())
	}
	w, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(w.Name()) // fails after the rename
	err = errors.Join(f(w), w.Chmod(0o644), w.Close())
	if err == nil {
		err = os.Rename(w.Name(), path)
	}
	return err
}

// keep writes a new temporary file with f, and returns its path. If f fails, no file is left.
func keep(f func(io.Writer) error) (path string, err error) {
	w, err := os.CreateTemp("", "gorail-*.html")
	if err != nil {
		return "", err
	}
	if err = errors.Join(f(w), w.Close()); err != nil {
		_ = os.Remove(w.Name())
		return "", err
	}
	return w.Name(), nil
}

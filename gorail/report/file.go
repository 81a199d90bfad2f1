package report

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a file with f: all of it or, if that fails, nothing. What is not a regular file is written as it is.
func WriteFile(path string, f func(io.Writer) error) error {
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
	err = errors.Join(f(w), w.Chmod(fs.FileMode(0o644)), w.Close())
	if err == nil {
		err = os.Rename(w.Name(), path)
	}
	if err != nil {
		_ = os.Remove(w.Name())
	}
	return err
}

// Keep writes a new temporary file with f, and returns its path. If f fails, no file is left. pattern is that of os.CreateTemp.
func Keep(pattern string, f func(io.Writer) error) (path string, err error) {
	w, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	if err = errors.Join(f(w), w.Close()); err != nil {
		_ = os.Remove(w.Name())
		return "", err
	}
	return w.Name(), nil
}

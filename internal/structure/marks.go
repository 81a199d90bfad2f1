package structure

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// mark matches //limit:NAME, in C /* limit:NAME */.
var mark = regexp.MustCompile(`(?://|/\* )limit:([a-z_]+)`)

// Marks returns the files with a mark of each name, in order. A mark stands beside an allocation on behalf of peers, and
// names its bound.
func Marks(root fs.FS) (map[string][]string, error) {
	marks := map[string][]string{}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && skipped(p):
			return fs.SkipDir
		case d.IsDir() || !product(p) || !slices.Contains([]string{"plugin", "backend"}, strings.Split(p, "/")[0]) || p == "backend/limits/limits.go":
			return nil // limits.go describes the marks
		}
		text, err := fs.ReadFile(root, p)
		for _, m := range mark.FindAllSubmatch(text, -1) {
			name := string(m[1])
			if !slices.Contains(marks[name], p) {
				marks[name] = append(marks[name], p)
			}
		}
		return err
	})
	return marks, err
}

package structure

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	fileName = regexp.MustCompile(`[A-Za-z0-9_/{},.-]*\.(?:go|cpp|c|h)\b`)
	pointer  = regexp.MustCompile("[A-Za-z0-9_/{},.-]*\\.(?:go|cpp|c|h)\\b|`[A-Za-z_][A-Za-z0-9_]*`")
)

// TestWhereToLook: in the table "Where to look" of docs/architecture.md a name in backquotes occurs in the file before it.
func TestWhereToLook(t *testing.T) {
	text := map[string]string{} // by base name, all files of that name
	root := "../.."
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "build") && p != root {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && fileName.MatchString(d.Name()) {
			b, err := os.ReadFile(p)
			text[d.Name()] += string(b)
			return err
		}
		return err
	}))
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "## Where to look")
	require.True(t, ok)
	n := 0
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 4 {
			continue
		}
		file := ""
		for _, at := range pointer.FindAllString(cells[2], -1) {
			if !strings.HasPrefix(at, "`") {
				file = path.Base(strings.Trim(at, "{}"))
				continue
			}
			name := strings.Trim(at, "`")
			if _, known := text[file]; !known {
				continue // a package, or a folder
			}
			n++
			require.Regexp(t, `\b`+name+`\b`, text[file], "docs/architecture.md, row %q: %s has no %s", strings.TrimSpace(cells[1]), file, name)
		}
	}
	require.Greater(t, n, 40, "the table is read")
}

package failpoint_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each point of the list is in the code once, and the code has no other. C's compiler checks its names with the tag alone.
func TestList(t *testing.T) {
	header, err := os.ReadFile("../include/gr_failpoint.h")
	require.NoError(t, err)
	var listed, used []string
	for _, m := range regexp.MustCompile(`(?m)^ +X\((\w+)\)`).FindAllSubmatch(header, -1) {
		listed = append(listed, string(m[1]))
	}
	use := regexp.MustCompile(`\bGR_(?:ALLOC|CALL|FAIL)\((\w+)[,)]|\bfailpoint\.Fail\("(\w+)"\)|\bclib\.Zeroed\("(\w+)"`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		code := strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".c") || strings.HasSuffix(path, ".h")
		if err != nil || !code || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "gr_failpoint.h") {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			// The race detector makes the expression slow.
			if !strings.Contains(line, "GR_") && !strings.Contains(line, "failpoint.") && !strings.Contains(line, "clib.") {
				continue
			}
			for _, m := range use.FindAllStringSubmatch(line, -1) {
				used = append(used, strings.Join(m[1:], ""))
			}
		}
		return err
	}))
	slices.Sort(listed)
	slices.Sort(used)
	require.Equal(t, listed, used)
}

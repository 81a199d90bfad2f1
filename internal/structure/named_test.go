package structure

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamedTests: docs/security.md proves its claims by tests. Each test that it names exists, and each subtest, with
// underscores for spaces.
func TestNamedTests(t *testing.T) {
	const root = "../.."
	var tests strings.Builder
	for _, dir := range []string{"backend", "test", "plugin", "cmd", "nixlapi", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.go") {
				var b []byte
				b, err = os.ReadFile(path)
				tests.Write(b)
			}
			return err
		}))
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`(Test\\w+)(\\*?)(?:/([^`]+))?`").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, named)
	for _, n := range named {
		end := "("
		if n[2] != "" {
			end = "" // the beginning of several names
		}
		require.True(t, strings.Contains(tests.String(), "\nfunc "+n[1]+end), "no test is %s", n[0])
		require.True(t, strings.Contains(tests.String(), `"`+strings.ReplaceAll(n[3], "_", " ")), "no subtest is %s", n[0])
	}
}

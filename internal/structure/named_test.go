package structure

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamedTests: these pages prove their claims by tests. Each test that they name exists, and each subtest, with
// underscores for spaces or as it is.
func TestNamedTests(t *testing.T) {
	var tests strings.Builder
	files(t, func(_, text string) { tests.WriteString(text) }, "_test.go")
	for _, name := range []string{"security.md", "frameworks.md"} {
		page, err := os.ReadFile("../../docs/" + name)
		require.NoError(t, err)
		named := regexp.MustCompile("`(Test\\w+)(\\*?)(?:/([^`]+))?`").FindAllStringSubmatch(string(page), -1)
		require.NotEmpty(t, named)
		for _, n := range named {
			end := "("
			if n[2] != "" {
				end = "" // the beginning of several names
			}
			require.True(t, strings.Contains(tests.String(), "\nfunc "+n[1]+end), "%s: no test is %s", name, n[0])
			spaced := strings.ReplaceAll(n[3], "_", " ")
			require.True(t, strings.Contains(tests.String(), `"`+spaced) || strings.Contains(tests.String(), `"`+n[3]), "%s: no subtest is %s", name, n[0])
		}
	}
}

// TestNamedOptions: each variable of GORAIL that docs/frameworks.md sets is one of docs/options.md.
func TestNamedOptions(t *testing.T) {
	page, err := os.ReadFile("../../docs/frameworks.md")
	require.NoError(t, err)
	options, err := os.ReadFile("../../docs/options.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`\bGORAIL_[A-Z_]+`).FindAllString(string(page), -1)
	require.NotEmpty(t, named)
	for _, n := range named {
		require.Contains(t, string(options), "| `"+n+"` |")
	}
}

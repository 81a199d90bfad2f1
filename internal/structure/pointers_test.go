package structure

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWays: the call lists of docs/architecture.md, "Four ways", name functions that their files have. A row is a file, names
// with commas between them, and what they do: two spaces or more stand between the three.
func TestWays(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	_, part, ok := strings.Cut(string(page), "## Four ways\n")
	require.True(t, ok)
	part, _, _ = strings.Cut(part, "\n## ")
	columns := regexp.MustCompile(`\s{2,}`)
	n := 0
	for i, block := range strings.Split(part, "```") {
		if i%2 == 0 {
			continue // text between the lists
		}
		for _, row := range strings.Split(strings.Trim(block, "\n"), "\n") {
			cells := columns.Split(row, 3)
			require.GreaterOrEqual(t, len(cells), 2, row)
			text, err := os.ReadFile(root + "/" + cells[0])
			require.NoError(t, err)
			for _, name := range strings.Split(cells[1], ", ") {
				n++
				require.Regexp(t, `\b`+name+`\(`, string(text), "docs/architecture.md: %s has no %s", cells[0], name)
			}
		}
	}
	require.Greater(t, n, 40, "the lists are read")
}

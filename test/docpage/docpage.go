// Package docpage keeps a part of a page equal to what the code says.
package docpage

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Check requires text between two marks of a page. The line of the first mark has the command that writes the part anew, which
// passes update.
func Check(t *testing.T, file, begin, end, text string, update bool) {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin)
	_, after, found2 := strings.Cut(rest, end)
	require.True(t, found && found2, "the page lacks its marks")
	want := before + begin + text + end + after
	if update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		page = []byte(want)
	}
	require.Equal(t, want, string(page), "the command in %q writes it anew", strings.TrimSpace(begin))
}

package structure

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// TestVersion: the pages that name the version and the protocol's version say what VERSION and wire.Version say.
// docs/packaging.md, "To raise the version".
func TestVersion(t *testing.T) {
	page := func(name string) string {
		b, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		return string(b)
	}
	version := strings.TrimSuffix(page("VERSION"), "\n")
	require.Regexp(t, `^\d+\.\d+\.\d+$`, version)
	first := regexp.MustCompile(`(?m)^## .*$`).FindString(page("CHANGELOG.md"))
	require.Regexp(t, `^## `+regexp.QuoteMeta(version)+` \((unreleased|\d{4}-\d\d-\d\d)\)$`, first, "CHANGELOG.md's first section is for VERSION")
	require.Contains(t, page("docs/upgrade.md"), fmt.Sprintf("\n## This version: %s, wire version %d\n", version, wire.Version))
	require.Contains(t, page("gorail/go.mod"), "\tgorail v"+version+"\n", "the tool's module requires the plugin's")
	require.Contains(t, page("go.work"), "\nreplace gorail v"+version+" => ./\n")
	require.Contains(t, page("README.md"), fmt.Sprintf("protocol version (now %d)", wire.Version))
}

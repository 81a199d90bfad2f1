package wire

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPagesNameVersion compares the pages that name the wire version with Version.
func TestPagesNameVersion(t *testing.T) {
	t.Parallel()
	for path, patterns := range map[string][]string{
		"../../README.md": {`the same protocol version \(now (\d+)\)`},
		"../../docs/upgrade.md": {
			`both blobs in NIXL's metadata\. It is (\d+) now`,
			`blob version \d+, here (\d+)"`,
			"`the peer has control protocol (\\d+), this side \\d+`",
			"`the initiator has control protocol \\d+, the target (\\d+): ",
			`(?m)^## This version: .*, wire version (\d+)$`,
		},
	} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, pattern := range patterns {
			m := regexp.MustCompile(pattern).FindSubmatch(page)
			require.NotNil(t, m, "%s does not have the words %s", path, pattern)
			require.Equal(t, strconv.Itoa(Version), string(m[1]), "%s: %s", path, pattern)
		}
	}
}

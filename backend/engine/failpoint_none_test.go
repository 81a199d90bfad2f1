//go:build !failpoints

package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without the tag a binary has no failpoints: neither this test's nor the plugin, if one is built. With the tag TestFailpointsAreHere finds
// the same names.
func TestNoFailpoints(t *testing.T) {
	files := []string{"/proc/self/exe"}
	plugin := filepath.Join(os.Getenv("GORAIL_PLUGIN_DIR"), "libplugin_GORAIL.so")
	if _, err := os.Stat(plugin); err == nil {
		files = append(files, plugin)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Empty(t, foundIn(b), file)
	}
}

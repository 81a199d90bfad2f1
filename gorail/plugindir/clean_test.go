package plugindir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClean: what Make made is gone, the wheel is as it was, and nothing of others is touched.
func TestClean(t *testing.T) {
	site, plugin := imitation(t)
	before := tree(t, site)
	above := t.TempDir()
	dir, cache := filepath.Join(above, "dir"), filepath.Join(above, "cache")
	for _, s := range []Spec{{Dir: dir}, {Cache: cache}, {Cache: cache, As: []string{"UCX"}}} {
		s.Plugin, s.Wheel = plugin, site
		_, err := Make(s)
		require.NoError(t, err)
	}
	removed, err := Clean(dir, "")
	require.NoError(t, err)
	require.Equal(t, []string{dir}, removed)
	require.NoDirExists(t, dir)
	removed, err = Clean(dir, "")
	require.NoError(t, err, "again")
	require.Empty(t, removed)
	removed, err = Clean("", cache)
	require.NoError(t, err)
	require.Len(t, removed, 2)
	require.NoDirExists(t, cache)
	require.Equal(t, before, tree(t, site), "the wheel is as it was")

	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err, "and made again")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	removed, err = Clean(dir, "")
	require.ErrorContains(t, err, "such as mine")
	require.Empty(t, removed)
	require.FileExists(t, filepath.Join(dir, "mine"))

	others := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(others, "file"), nil, 0o600))
	_, err = Clean(others, "")
	require.ErrorContains(t, err, "was not made by gorail plugins")
	require.FileExists(t, filepath.Join(others, "file"))
	_, err = Clean(site, "")
	require.ErrorContains(t, err, "was not made by gorail plugins")
	require.Equal(t, before, tree(t, site))
}

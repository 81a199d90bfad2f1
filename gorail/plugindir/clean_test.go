package plugindir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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
	removed, err := Clean(dir, "", nil)
	require.NoError(t, err)
	require.Equal(t, []string{dir}, removed)
	require.NoDirExists(t, dir)
	removed, err = Clean(dir, "", nil)
	require.NoError(t, err, "again")
	require.Empty(t, removed)
	removed, err = Clean("", cache, nil)
	require.NoError(t, err)
	require.Len(t, removed, 2)
	require.NoDirExists(t, cache)
	require.Equal(t, before, tree(t, site), "the wheel is as it was")

	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err, "and made again")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	removed, err = Clean(dir, "", nil)
	require.ErrorContains(t, err, "such as mine")
	require.Empty(t, removed)
	require.FileExists(t, filepath.Join(dir, "mine"))

	require.NoError(t, os.Remove(filepath.Join(dir, "mine")))
	require.NoError(t, os.Rename(filepath.Join(dir, "plugins"), filepath.Join(above, "aside")))
	require.NoError(t, os.Symlink(filepath.Join(above, "aside"), filepath.Join(dir, "plugins")))
	_, err = Clean(dir, "", nil)
	require.ErrorContains(t, err, "plugins is no folder")
	require.NotEmpty(t, tree(t, filepath.Join(above, "aside")), "a link leads nowhere")

	empty := filepath.Join(above, "empty")
	require.NoError(t, os.Mkdir(empty, 0o755))
	removed, err = Clean("", empty, nil)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.DirExists(t, empty)

	_, err = Make(Spec{Cache: cache, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(cache, "another"), 0o755)) // a Make begins in it
	removed, err = Clean("", cache, nil)
	require.NoError(t, err)
	require.Len(t, removed, 1)
	require.DirExists(t, filepath.Join(cache, "another"))

	others := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(others, "file"), nil, 0o600))
	_, err = Clean(others, "", nil)
	require.ErrorContains(t, err, "was not made by gorail plugins")
	require.FileExists(t, filepath.Join(others, "file"))
	_, err = Clean(site, "", nil)
	require.ErrorContains(t, err, "was not made by gorail plugins")
	require.Equal(t, before, tree(t, site))
}

// TestLinks: a mark that is a link, as anybody may make it, is no mark of ours, and Clean says so. A folder that is a link to nothing is refused at once.
func TestLinks(t *testing.T) {
	site, plugin := imitation(t)
	above := t.TempDir()
	dir, link := filepath.Join(above, "dir"), filepath.Join(above, "link")
	_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.NoError(t, os.Rename(filepath.Join(dir, mark), filepath.Join(above, "mark")))
	require.NoError(t, os.Symlink(filepath.Join(above, "mark"), filepath.Join(dir, mark)))
	_, err = Clean(dir, "", nil)
	require.ErrorContains(t, err, "was not made by gorail plugins")
	require.DirExists(t, dir)

	require.NoError(t, os.Symlink(filepath.Join(above, "nothing"), link))
	_, err = Make(Spec{Dir: link, Plugin: plugin, Wheel: site})
	require.ErrorContains(t, err, "is a link to something that is not there")
	require.NoDirExists(t, filepath.Join(above, "nothing"))
}

// TestCleanBesideMake: a folder that is removed and made at the same time is there whole in the end, or gone.
func TestCleanBesideMake(t *testing.T) {
	site, plugin := imitation(t)
	dir := filepath.Join(t.TempDir(), "dir")
	var both sync.WaitGroup
	for range 4 {
		both.Go(func() {
			for range 25 {
				_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
				assert.NoError(t, err)
			}
		})
		both.Go(func() {
			for range 25 {
				_, err := Clean(dir, "", nil)
				assert.NoError(t, err)
			}
		})
	}
	both.Wait()
	_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "plugins", "libplugin_UCX.so"))
	_, err = Clean(dir, "", nil)
	require.NoError(t, err)
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Empty(t, left)
}

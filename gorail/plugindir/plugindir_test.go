package plugindir

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// imitation makes a folder with the layout of site-packages with a wheel, and a plugin beside it.
func imitation(t *testing.T) (site, plugin string) {
	site, plugin = t.TempDir(), filepath.Join(t.TempDir(), "libplugin_GORAIL.so")
	for _, f := range []string{".nixl_cu13.mesonpy.libs/libnixl.so", ".nixl_cu13.mesonpy.libs/plugins/libplugin_UCX.so", "nixl_cu13.libs/libucp-1.so.0",
		"nixl_cu13.libs/ucx/libuct_cma.so.0", "nixl_cu13.libs/nixl/libplugin_UCX.so", "nixl_cu13.libs/nixl/libplugin_POSIX.so",
		"nixl_cu13.libs/nixl/libtelemetry_exporter_doca.so", "nixl_cu13.libs/README"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(site, f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(site, f), []byte(f), 0o644))
	}
	require.NoError(t, os.WriteFile(plugin, []byte("gorail"), 0o644))
	return site, plugin
}

// tree lists a folder without its lock: links with their targets, other files with "".
func tree(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != lockFile {
			rel, _ := filepath.Rel(dir, path)
			out[rel], _ = os.Readlink(path)
		}
		return err
	}))
	return out
}

func TestMake(t *testing.T) {
	site, plugin := imitation(t)
	before := tree(t, site)
	dir := filepath.Join(t.TempDir(), "a", "b")

	made, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.Equal(t, Made{Plugins: filepath.Join(dir, "plugins"), Source: "nixl-cu13 in " + site, Stock: []string{"POSIX", "UCX"}}, made)
	plain := map[string]string{
		mark: "", "libnixl.so": site + "/.nixl_cu13.mesonpy.libs/libnixl.so", "libucp-1.so.0": site + "/nixl_cu13.libs/libucp-1.so.0",
		"ucx": site + "/nixl_cu13.libs/ucx", "plugins/libplugin_GORAIL.so": plugin,
		"plugins/libplugin_UCX.so":              site + "/nixl_cu13.libs/nixl/libplugin_UCX.so",
		"plugins/libplugin_POSIX.so":            site + "/nixl_cu13.libs/nixl/libplugin_POSIX.so",
		"plugins/libtelemetry_exporter_doca.so": site + "/nixl_cu13.libs/nixl/libtelemetry_exporter_doca.so",
	}
	require.Equal(t, plain, tree(t, dir))

	// Again, with names: only those links change. Without names: the first state.
	made, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site, As: []string{"UCX", "Mooncake", "UCX"}})
	require.NoError(t, err)
	require.Equal(t, []string{"Mooncake", "UCX"}, made.Aliases)
	require.Equal(t, []string{"UCX"}, made.Hidden)
	require.Equal(t, []string{"POSIX"}, made.Stock)
	got := tree(t, dir)
	require.Equal(t, plugin, got["plugins/libplugin_UCX.so"])
	require.Equal(t, plugin, got["plugins/libplugin_Mooncake.so"])
	for range 2 {
		_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
		require.NoError(t, err)
		require.Equal(t, plain, tree(t, dir))
	}
	require.Equal(t, before, tree(t, site), "the wheel is as it was")
}

func TestMakeRefuses(t *testing.T) {
	site, plugin := imitation(t)
	before := tree(t, site)
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o644))
	way := filepath.Join(t.TempDir(), "wheel")
	require.NoError(t, os.Symlink(filepath.Join(site, "nixl_cu13.libs"), way))

	for _, tt := range []struct {
		change func(*Spec)
		says   string
	}{
		{func(s *Spec) { s.As = []string{"../UCX"} }, `--as "../UCX": not a name`},
		{func(s *Spec) { s.As = []string{"GORAIL"} }, "not a name of another"},
		{func(s *Spec) { s.Plugin = "/nonexistent/x.so" }, "make build"},
		{func(s *Spec) { s.Plugin = full }, "no plugin at"},
		{func(s *Spec) { s.Wheel = "" }, "--wheel"},
		{func(s *Spec) { s.Wheel = full }, "site-packages"},
		{func(s *Spec) { s.CUDA = "12" }, "there is only nixl-cu13"},
		{func(s *Spec) { s.From = full }, "leave out --wheel"},
		{func(s *Spec) { s.From, s.Wheel = full, "" }, "no plugin of NIXL's"},
		{func(s *Spec) { s.From, s.Wheel = "/nonexistent/plugins", "" }, "no such file"},
		{func(s *Spec) { s.Dir = full }, "thesis.txt"},
		{func(s *Spec) { s.Dir = filepath.Join(site, "nixl_cu13.libs", "new") }, "is not touched"},
		{func(s *Spec) { s.Dir = filepath.Join(way, "new", "er") }, "is not touched"},
	} {
		s := Spec{Dir: filepath.Join(t.TempDir(), "d"), Plugin: plugin, Wheel: site}
		tt.change(&s)
		_, err := Make(s)
		require.ErrorContains(t, err, tt.says)
	}
	require.Equal(t, before, tree(t, site))
	require.Len(t, tree(t, full), 1)
}

// TestMakeLeavesOthersFiles: foreign files stay. Make reports a file in place of a link.
func TestMakeLeavesOthersFiles(t *testing.T) {
	site, plugin := imitation(t)
	dir := t.TempDir()
	_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "plugins", "libplugin_MINE.so"), []byte("mine"), 0o644))
	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "plugins", "libplugin_MINE.so"))
	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site, As: []string{"MINE"}})
	require.ErrorContains(t, err, "is not a link")
}

// TestBackends: the plugins of several folders, each once; other libraries and broken links are none.
func TestBackends(t *testing.T) {
	site, plugin := imitation(t)
	bundle := filepath.Join(site, "nixl_cu13.libs", "nixl")
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(bundle, "libplugin_GONE.so")))
	require.Equal(t, []string{"GORAIL", "POSIX", "UCX"}, Backends(filepath.Dir(plugin), bundle, bundle))
	require.Empty(t, Backends(t.TempDir()))
}

package plugindir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
)

func write(t *testing.T, dir string, files map[string]string) {
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// TestTwoWheels: torch's CUDA version chooses between two wheels, else NIXL's order does. python/tests compares that with
// NIXL's own package.
func TestTwoWheels(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without an interpreter that might have a torch
	site, plugin := imitation(t)
	write(t, site, map[string]string{".nixl_cu12.mesonpy.libs/libnixl.so": "", "nixl_cu12.libs/nixl/libplugin_UCX.so": "",
		".nixl_cu11.mesonpy.libs/libnixl.so": ""}) // the rest of a wheel that is gone
	for _, tt := range []struct{ torch, cuda, variant, why, fails string }{
		{"", "", "cu13", "without a torch for CUDA", ""},
		{"cuda: Optional[str] = None\n", "", "cu13", "without a torch for CUDA", ""},
		{"__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "", "cu12", "torch is built for CUDA 12", ""},
		{"cuda = \"13.0\"\n", "", "cu13", "torch is built for CUDA 13", ""},
		{"cuda = '13.0'\n", "12", "cu12", "--cuda 12", ""},
		{"cuda = '11.8'\n", "", "", "", "torch is built for CUDA 11, and there are nixl-cu12 and nixl-cu13"},
		{"", "11", "", "", "there is only nixl-cu12 and nixl-cu13"},
	} {
		if tt.torch != "" {
			write(t, site, map[string]string{"torch/version.py": tt.torch})
		}
		dir := t.TempDir()
		made, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site, CUDA: tt.cuda})
		if tt.fails != "" {
			require.ErrorContains(t, err, tt.fails)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "nixl-"+tt.variant+" in "+site, made.Source)
		require.Contains(t, made.Why, tt.why)
		require.Equal(t, filepath.Join(site, "nixl_"+tt.variant+".libs/nixl/libplugin_UCX.so"), tree(t, dir)["plugins/libplugin_UCX.so"])
	}
}

// stock makes a folder with plugins as Dynamo's images have it.
func stock(t *testing.T) string {
	root := t.TempDir()
	write(t, root, map[string]string{"lib64/plugins/libplugin_UCX.so": "", "lib64/plugins/libplugin_OBJ.so": "",
		"lib64/plugins/libtelemetry_exporter_prometheus.so": "", "lib64/plugins/libtrace_backend_nvtx.so": "", "lib64/plugins/README": "",
		"lib64/libnixl.so.1": "", "lib64/ucx/libuct_cma.so.0": "", "lib64/pkgconfig/nixl.pc": "", "lib64/libnixl_static.a": ""})
	require.NoError(t, os.Symlink("libnixl.so.1", filepath.Join(root, "lib64/libnixl.so")))
	return filepath.Join(root, "lib64")
}

// TestOneWheel: nixlapi loads the chosen wheel of a folder that has two.
func TestOneWheel(t *testing.T) {
	site, _ := imitation(t)
	for _, v := range []string{"cu12", "cu13"} {
		write(t, site, map[string]string{".nixl_" + v + ".mesonpy.libs/libnixl_capi.so": "", "nixl_" + v + ".libs/nixl/libplugin_UCX.so": ""})
	}
	t.Setenv("PATH", "") // no torch of this machine
	for cuda, want := range map[string]string{"": "cu13", "12": "cu12"} {
		one, err := OneWheel(site, cuda)
		require.NoError(t, err)
		lib, err := nixlapi.LibDir(one)
		require.NoError(t, err)
		require.Equal(t, site+"/.nixl_"+want+".mesonpy.libs", lib)
		require.Equal(t, site+"/nixl_"+want+".libs/nixl", nixlapi.PluginDir(one))
	}
	_, err := OneWheel(site, "11")
	require.ErrorContains(t, err, "--cuda 11: there is only nixl-cu12 and nixl-cu13")
}

func TestFrom(t *testing.T) {
	lib, dir := stock(t), t.TempDir()
	_, plugin := imitation(t)
	made, err := Make(Spec{Dir: dir, Plugin: plugin, From: lib + "/plugins", As: []string{"UCX"}})
	require.NoError(t, err)
	require.Equal(t, []string{"OBJ"}, made.Stock)
	require.Equal(t, []string{"UCX"}, made.Hidden)
	require.Equal(t, map[string]string{mark: "", "libnixl.so": lib + "/libnixl.so", "libnixl.so.1": lib + "/libnixl.so.1", "ucx": lib + "/ucx",
		"plugins/libplugin_GORAIL.so": plugin, "plugins/libplugin_UCX.so": plugin, "plugins/libplugin_OBJ.so": lib + "/plugins/libplugin_OBJ.so",
		"plugins/libtelemetry_exporter_prometheus.so": lib + "/plugins/libtelemetry_exporter_prometheus.so",
		"plugins/libtrace_backend_nvtx.so":            lib + "/plugins/libtrace_backend_nvtx.so"}, tree(t, dir))
	_, err = Make(Spec{Dir: filepath.Join(lib, "plugins", "new"), Plugin: plugin, From: lib + "/plugins"})
	require.ErrorContains(t, err, "is not touched")
}

// TestFromWheel: each plugin folder of a wheel stands for the wheel, whose libraries are in two folders.
func TestFromWheel(t *testing.T) {
	site, plugin := imitation(t)
	want := t.TempDir()
	_, err := Make(Spec{Dir: want, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	for _, from := range []string{"nixl_cu13.libs/nixl", ".nixl_cu13.mesonpy.libs/plugins"} {
		dir := t.TempDir()
		_, err := Make(Spec{Dir: dir, Plugin: plugin, From: filepath.Join(site, from)})
		require.NoError(t, err)
		require.Equal(t, tree(t, want), tree(t, dir))
	}
}

// TestDefault: NIXL_PLUGIN_DIR names the stock plugins, unless it has none. A folder of our own stands for its origin.
func TestDefault(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("NIXL_WHEEL_DIR", "/the/wheel")
	lib := stock(t)
	site, plugin := imitation(t)
	ofFolder, ofWheel, old, link := t.TempDir(), t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "link")
	for dir, s := range map[string]Spec{ofFolder: {From: lib + "/plugins"}, ofWheel: {Wheel: site}, old: {Wheel: site}} {
		s.Dir, s.Plugin = dir, plugin
		_, err := Make(s)
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(old, mark), []byte(madeBy), 0o644)) // as older versions wrote it
	require.NoError(t, os.Symlink(ofFolder, link))
	for _, tt := range []struct{ env, wheel, wantFrom, wantWheel, note string }{
		{"", "", "", "/the/wheel", ""},
		{lib + "/plugins", "", lib + "/plugins", "", ""},
		{ofFolder + "/plugins", "", lib + "/plugins", "", ""},
		{link + "/plugins", "", lib + "/plugins", "", ""},
		{ofWheel + "/plugins", "", "", site, ""},
		{ofWheel + "/plugins", "/the/wheel", "", "/the/wheel", ""},
		{old + "/plugins", "/the/wheel", "", "/the/wheel", ""},
		{filepath.Dir(plugin), "/the/wheel", "", "/the/wheel", "it has no plugin of NIXL's"},
		{"/nonexistent", "/the/wheel", "", "/the/wheel", "no such file"},
	} {
		t.Setenv("NIXL_PLUGIN_DIR", tt.env)
		if tt.env != "" {
			t.Setenv("NIXL_WHEEL_DIR", tt.wheel)
		}
		s, notes := Default(Spec{})
		require.Equal(t, Spec{From: tt.wantFrom, Wheel: tt.wantWheel}, s, tt.env)
		require.Contains(t, fmt.Sprint(notes), tt.note)
	}
	t.Setenv("NIXL_PLUGIN_DIR", lib+"/plugins")
	s, notes := Default(Spec{CUDA: "12"})
	require.Equal(t, Spec{From: lib + "/plugins"}, s)
	require.Contains(t, notes[0], "--cuda is not used")
	s, _ = Default(Spec{Wheel: site, CUDA: "12"})
	require.Equal(t, Spec{Wheel: site, CUDA: "12"}, s)
}

// TestMakeFromItself: a folder of ours that is made again from itself stays what it was, also as the only source.
func TestMakeFromItself(t *testing.T) {
	_, plugin := imitation(t)
	dir := t.TempDir()
	_, err := Make(Spec{Dir: dir, Plugin: plugin, From: stock(t) + "/plugins"})
	require.NoError(t, err)
	before := tree(t, dir)
	for range 2 {
		_, err = Make(Spec{Dir: dir, Plugin: plugin, From: dir + "/plugins"})
		require.NoError(t, err)
		require.Equal(t, before, tree(t, dir))
	}
}

// TestCache: one folder for each plugin, source and set of names, below one folder.
func TestCache(t *testing.T) {
	site, plugin := imitation(t)
	_, other := imitation(t)
	cache := t.TempDir()
	made := func(s Spec) string {
		s.Cache = cache
		m, err := Make(s)
		require.NoError(t, err)
		require.Equal(t, cache, filepath.Dir(filepath.Dir(m.Plugins)))
		return m.Plugins
	}
	first := made(Spec{Plugin: plugin, Wheel: site})
	require.Equal(t, first, made(Spec{Plugin: plugin, Wheel: site}))
	require.Equal(t, first, made(Spec{Plugin: plugin, From: first}), "made from itself")
	folders := map[string]bool{first: true, made(Spec{Plugin: other, Wheel: site}): true, made(Spec{Plugin: plugin, From: stock(t) + "/plugins"}): true,
		made(Spec{Plugin: plugin, Wheel: site, As: []string{"UCX", "Mooncake"}}): true, made(Spec{Plugin: plugin, Wheel: site, As: []string{"Mooncake", "UCX"}}): true}
	require.Len(t, folders, 4)
}

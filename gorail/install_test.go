package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInstall: make install creates only the plugin and the tool below DESTDIR, and the tool finds that plugin.
func TestInstall(t *testing.T) {
	env := needs(t)
	if _, err := os.Stat(filepath.Join(env.PluginDir, "build.ninja")); err != nil {
		t.Skipf("%s is not meson's build folder", env.PluginDir)
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	if build, _ := filepath.EvalSymlinks(env.PluginDir); build != filepath.Join(root, "build") {
		t.Skipf("make install installs from %s/build, not from %s", root, env.PluginDir)
	}
	dest := t.TempDir()
	out, err := exec.Command("make", "-C", root, "-o", "build", "install", "DESTDIR="+dest).CombinedOutput()
	require.NoError(t, err, "%s", out)

	var plugin, tool string
	files := 0
	require.NoError(t, filepath.WalkDir(dest, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		switch filepath.Base(path) {
		case "libplugin_GORAIL.so":
			plugin = path
		case "gorail":
			tool = path
		}
		return nil
	}))
	require.Equal(t, 2, files)
	require.Equal(t, "plugins", filepath.Base(filepath.Dir(plugin)))
	require.Equal(t, "bin", filepath.Base(filepath.Dir(tool)))

	want, err := os.ReadFile(filepath.Join(root, "VERSION"))
	require.NoError(t, err)
	for _, how := range []string{"version", "--version"} {
		out, err = exec.Command(tool, how).Output()
		require.NoError(t, err)
		require.Equal(t, "gorail "+string(want), string(out))
	}

	dir := filepath.Join(t.TempDir(), "d")
	c := exec.Command(tool, "plugins", "--dir", dir, "--wheel", env.WheelDir)
	c.Dir = t.TempDir() // without ./build
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GORAIL_PLUGIN_DIR=") {
			c.Env = append(c.Env, v)
		}
	}
	out, err = c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	leads, err := os.Readlink(filepath.Join(dir, "plugins", "libplugin_GORAIL.so"))
	require.NoError(t, err)
	require.Equal(t, plugin, leads)
}

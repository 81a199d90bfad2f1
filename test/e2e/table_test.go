package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/abi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// wheelWith makes a copy of the wheel by symbolic links, with a changed POSIX plugin.
func wheelWith(t *testing.T, env testenv.Env, change func(p *abi.Patch)) testenv.Env {
	t.Helper()
	lib, err := nixlapi.LibDir(env.WheelDir)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(nixlapi.BundleDir(env.WheelDir), filepath.Join(dir, filepath.Base(nixlapi.BundleDir(env.WheelDir)))))
	libs := filepath.Join(dir, filepath.Base(lib))
	require.NoError(t, os.MkdirAll(filepath.Join(libs, "plugins"), 0o755))
	found, err := filepath.Glob(filepath.Join(lib, "*.so*"))
	require.NoError(t, err)
	for _, f := range found {
		require.NoError(t, os.Symlink(f, filepath.Join(libs, filepath.Base(f))))
	}
	posix := testenv.PluginFile("POSIX")
	p, err := abi.NewPatch(filepath.Join(nixlapi.PluginDir(env.WheelDir), posix))
	require.NoError(t, err)
	defer p.Close()
	change(p)
	require.NoError(t, p.Write(filepath.Join(libs, "plugins", posix)))
	env.WheelDir = dir
	return env
}

// TestAnotherTable: NIXL's own plugins have another table of virtual functions. createBackend then fails each time, and
// the log has one ERROR. A wheel whose plugins have no symbol names gets a backend. test/abi tests each place in the
// table.
func TestAnotherTable(t *testing.T) {
	t.Parallel()
	env := ours(t)
	try := func(t *testing.T, change func(p *abi.Patch)) (*worker.Worker, testenv.Env) {
		env := wheelWith(t, env, change)
		return process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=debug"}}), env
	}
	const inserted = "no GORAIL backend: "
	for name, k := range map[string]int{"first": 0, "in front of getSupportedMems": 5, "in the middle": 13, "last": 27} {
		t.Run(name, func(t *testing.T) {
			w, env := try(t, func(p *abi.Patch) { require.NoError(t, p.InsertSlot(k, "nixlBackendEngine", "nixlPosixEngine")) })
			refused(t, w, env, "alice")
			refused(t, w, env, "bob")
			says(t, w, "level=ERROR", inserted, "NIXL 1.0.0 .. 1.5.1", filepath.Join("plugins", testenv.PluginFile("POSIX")), "Use one of those releases")
			require.Equal(t, 1, strings.Count(w.Output(), inserted), w.Output())
		})
	}
	t.Run("the same", func(t *testing.T) {
		w, env := try(t, func(*abi.Patch) {})
		works(t, w, env)
		says(t, w, "level=DEBUG", "NIXL's table of backend functions", filepath.Join("plugins", testenv.PluginFile("POSIX")))
	})
	t.Run("no names", func(t *testing.T) {
		lib, err := nixlapi.LibDir(env.WheelDir)
		require.NoError(t, err)
		w, env := try(t, func(p *abi.Patch) { p.Nameless(func(string) bool { return true }) })
		works(t, w, env)
		says(t, w, "level=DEBUG", "NIXL's table of backend functions", filepath.Join(lib, "plugins", testenv.PluginFile("POSIX"))) // the targets of the symbolic links
	})
}

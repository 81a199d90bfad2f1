package plugindir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFindFirst: the first interpreter that has a wheel is the one that counts, and its package nixl_gorail.
func TestFindFirst(t *testing.T) {
	dir := t.TempDir()
	python := func(name, prints string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nprintf '"+prints+"'\n"), 0o700))
		return path
	}
	site := filepath.Join(dir, "site")
	bare, torch := python("bare", ""), python("torch", `torch /t/torch\n`)
	own, other := python("own", "nixl_cu12 "+site+`/nixl_cu12\n`), python("other", `nixl_cu13 /o/nixl_cu13\n`)
	found, by := findFirst([]string{filepath.Join(dir, "none"), bare, torch, own, other})
	require.Equal(t, []any{map[string]string{"cu12": site + "/nixl_cu12"}, own}, []any{found, by})
	found, by = findFirst([]string{other, own})
	require.Equal(t, []any{map[string]string{"cu13": "/o/nixl_cu13"}, other}, []any{found, by})
	_, by = findFirst([]string{bare, torch})
	require.Empty(t, by)

	require.Equal(t, []string{"/v/bin/python3", "python3", "/v/lib/python3.12/site-packages/nixl_gorail/.venv/bin/python3"}, pythons("/v/lib/python3.12/site-packages/nixl_gorail/bin/gorail"))
	venv := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(venv, "pyvenv.cfg"), nil, 0o600))
	require.Equal(t, []string{venv + "/bin/python3", "python3", venv + "/.venv/bin/python3"}, pythons(venv+"/bin/gorail"))
	require.Equal(t, []string{"python3", "/usr/bin/python3", "/usr/.venv/bin/python3"}, pythons("/usr/bin/gorail"), "an activated environment comes before /usr/bin")
	require.Equal(t, []string{"python3", "/src/build/python3", "/src/.venv/bin/python3"}, pythons("/src/build/gorail"))

	program := filepath.Join(t.TempDir(), "gorail")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	require.True(t, runnable(own, program))
	require.False(t, runnable(filepath.Join(dir, "none"), program))
	require.NoError(t, os.Symlink(own, filepath.Join(dir, "link")))
	require.True(t, runnable(filepath.Join(dir, "link"), program))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Lchown(filepath.Join(dir, "link"), 1234, 1234))
		require.False(t, runnable(filepath.Join(dir, "link"), program), "a link of somebody")
		require.NoError(t, os.Chown(program, 1234, 1234))
		require.True(t, runnable(filepath.Join(dir, "link"), program), "the owner of the program")
		require.NoError(t, os.Chown(dir, 4321, 4321))
		require.False(t, runnable(own, program), "a folder of somebody else")
	}

	w := Wheels{Where: site}
	require.False(t, w.Enables())
	require.NoError(t, os.MkdirAll(filepath.Join(site, "nixl_gorail"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(site, "nixl_gorail", "__init__.py"), nil, 0o600))
	require.True(t, w.Enables())
	require.False(t, Wheels{}.Enables())
}

// TestOwnEnvironment: a tool of an environment without NIXL says that the wheel is another interpreter's.
func TestOwnEnvironment(t *testing.T) {
	tool, other := t.TempDir(), t.TempDir()
	put := func(dir, prints string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "bin", "python3"), []byte("#!/bin/sh\n"+prints+"\n"), 0o700))
	}
	program := filepath.Join(tool, "bin", "gorail")
	put(tool, "")
	put(other, "echo nixl_cu12 /o/nixl_cu12")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	t.Setenv("PATH", filepath.Join(other, "bin"))
	found, own := beside(program)
	require.Equal(t, []any{map[string]string{"cu12": "/o/nixl_cu12"}, tool}, []any{found, own})
	put(tool, "echo nixl_cu13 /t/nixl_cu13")
	found, own = beside(program)
	require.Equal(t, []any{map[string]string{"cu13": "/t/nixl_cu13"}, ""}, []any{found, own})
}

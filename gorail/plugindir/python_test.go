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
	require.Equal(t, map[string]string{"cu12": site + "/nixl_cu12"}, findFirst([]string{filepath.Join(dir, "none"), bare, torch, own, other}))
	require.Equal(t, map[string]string{"cu13": "/o/nixl_cu13"}, findFirst([]string{other, own}))

	w := Wheels{Where: site}
	require.False(t, w.Enables())
	require.NoError(t, os.MkdirAll(filepath.Join(site, "nixl_gorail"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(site, "nixl_gorail", "__init__.py"), nil, 0o600))
	require.True(t, w.Enables())
	require.False(t, Wheels{}.Enables())
}

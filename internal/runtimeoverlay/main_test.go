package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func source(t *testing.T, name string) []byte {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "src/runtime", name)) //nolint:staticcheck // the toolchain that runs the test
	require.NoError(t, err)
	return src
}

// The table of this toolchain keeps five entries.
func TestTable(t *testing.T) {
	src := source(t, "sigtab_linux_generic.go")
	out, err := table(src)
	require.NoError(t, err)
	require.Equal(t, 5, strings.Count(string(out), "_SigUnblock"))
	require.Equal(t, 60, strings.Count(string(out), "*/ {0, "))
	require.Equal(t, strings.Count(string(src), "\n"), strings.Count(string(out), "\n"))
}

// Another table is refused, with what is wrong.
func TestUnexpected(t *testing.T) {
	src := string(source(t, "sigtab_linux_generic.go"))
	for want, other := range map[string]string{
		"signal 11 has the flags _SigThrow":     strings.Replace(src, "/* 11 */ {_SigPanic", "/* 11 */ {_SigThrow", 1),
		"the table has 64 entries":              strings.Replace(src, "\t/* 64 */ {_SigNotify, \"signal 64\"},\n", "", 1),
		"follows 14":                            strings.Replace(src, "/* 13 */", "/* 14 */", 1),
		"0 lines are \"const preemptMSupported": "",
	} {
		change := table
		if other == "" {
			change = changes["signal_unix.go"]
		}
		_, err := change([]byte(other))
		require.ErrorContains(t, err, want)
	}
}

// A toolchain in the module cache is reached by a link.
func TestOutside(t *testing.T) {
	out := t.TempDir()
	root, err := outside("/cache/toolchain", "/cache", out)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(out, "goroot"), root)
	to, err := os.Readlink(root)
	require.NoError(t, err)
	require.Equal(t, "/cache/toolchain", to)
	root, err = outside("/cachet/toolchain", "/cache", out)
	require.NoError(t, err)
	require.Equal(t, "/cachet/toolchain", root)
}

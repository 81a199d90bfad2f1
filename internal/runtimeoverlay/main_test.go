package main

import (
	"go/format"
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

// The sources of this toolchain are as expected. The changed one is Go that gofmt leaves as it is, and differs only where it should.
func TestChanges(t *testing.T) {
	require.NoError(t, table(source(t, "sigtab_linux_generic.go")))
	src := source(t, "signal_unix.go")
	out, err := changes["signal_unix.go"](src)
	require.NoError(t, err)
	same, err := format.Source(out)
	require.NoError(t, err)
	require.Equal(t, string(same), string(out))
	require.Contains(t, string(out), "case 7, 8, 11, 32, 33:\n")
	back := strings.Replace(strings.Replace(string(out), forget(), "", 1), "\nvar preemptM", "\nconst preemptM", 1)
	require.Equal(t, string(src), back)
}

// Another table is refused, with what is wrong.
func TestUnexpected(t *testing.T) {
	src := string(source(t, "sigtab_linux_generic.go"))
	for want, other := range map[string]string{
		"signal 11 has the flags _SigThrow": strings.Replace(src, "/* 11 */ {_SigPanic", "/* 11 */ {_SigThrow", 1),
		"the table has 64 entries":          strings.Replace(src, "\t/* 64 */ {_SigNotify, \"signal 64\"},\n", "", 1),
		"follows 12":                        strings.Replace(src, "/* 13 */", "/* 14 */", 1),
	} {
		require.ErrorContains(t, table([]byte(other)), want)
	}
	change := changes["signal_unix.go"]
	_, err := change(nil)
	require.ErrorContains(t, err, "0 parts are \"const preemptMSupported")
	_, err = change([]byte(preempts))
	require.ErrorContains(t, err, "0 parts are \"if (isarchive || islibrary)")
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

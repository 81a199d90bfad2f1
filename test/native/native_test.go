package native

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMissing: missing headers and sanitizers are distinguished from mistakes.
func TestMissing(t *testing.T) {
	dir, err := filepath.Rel(At(), t.TempDir())
	require.NoError(t, err)
	p := Part{Name: "native-test", Program: true, Dirs: []string{dir}}
	for text, missing := range map[string]bool{
		"#include <infiniband/nosuch.h>\n": true,
		"#include <nosuch.h>\n":            false,
		"int main(void) { return 0 }\n":    false,
	} {
		require.NoError(t, os.WriteFile(At(dir, "main.c"), []byte(text), 0o644))
		_, err := p.Make()
		require.Error(t, err)
		var m *Missing
		if missing {
			require.ErrorAs(t, err, &m)
		} else {
			require.NotErrorAs(t, err, &m)
		}
	}
	require.NoError(t, os.WriteFile(At(dir, "main.c"), []byte("int main(void) { return 0; }\n"), 0o644))
	p.Flags = []string{"-fsanitize=nosuch"}
	_, err = p.Make()
	var m *Missing
	require.ErrorAs(t, err, &m)
}

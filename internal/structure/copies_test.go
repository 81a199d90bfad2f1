package structure

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestGuarded: no C of the plugin loads or stores the application's memory by itself. It would end the process if the application has
// unmapped the memory. Whoever adds a copy uses gr_guard.h, or marks it as one of our own memory.
func TestGuarded(t *testing.T) {
	list, err := Unguarded(os.DirFS("../.."))
	require.NoError(t, err)
	for _, line := range list {
		t.Error(line, "(use gr_guard.h, or mark the line /* ours */ if both sides are memory of the plugin)")
	}
}

func TestUnguarded(t *testing.T) {
	list, err := Unguarded(fstest.MapFS{
		"backend/a/a.c":       {Data: []byte("x();\n    memcpy(to, from, n);\n    memmove(a, b, n); /* ours */\n /* memcpy(x) */\n")},
		"backend/a/ctest/a.c": {Data: []byte("memcpy(a, b, n);\n")},
		"backend/guard/a.c":   {Data: []byte("memcpy(a, b, n);\n")},
		"backend/b/b.h":       {Data: []byte("static void f() { memcpy(a, b, 4); } /* ours: a header */\n")},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"backend/a/a.c:2: memcpy(to, from, n);"}, list)
}

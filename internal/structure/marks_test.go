package structure

import (
	"io/fs"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
)

// strays compares the marks of a tree with rows: the file of each name, below backend/.
func strays(t *testing.T, root fs.FS, rows map[string]string) (out []string) {
	marks, err := Marks(root)
	require.NoError(t, err)
	for name := range marks {
		if rows[name] == "" {
			out = append(out, "limit:"+name+" is not in the list")
		}
	}
	for name, file := range rows {
		if !slices.Contains(marks[name], "backend/"+file) {
			out = append(out, "no limit:"+name+" in "+file)
		}
	}
	slices.Sort(out)
	return out
}

// TestMarks: each mark has a row in the list of bounds, and each row has its mark in the file that it names.
func TestMarks(t *testing.T) {
	rows := map[string]string{}
	for _, r := range limits.List {
		rows[r.Name] = r.Where
	}
	for _, why := range strays(t, os.DirFS("../.."), rows) {
		t.Error(why, "(backend/limits/list.go)")
	}
}

func TestStrayMarks(t *testing.T) {
	tree := fstest.MapFS{
		"backend/a/a.go":      {Data: []byte("package a\nx = append(x, y) //limit:known\n//limit:stray\n")},
		"backend/a/a_test.go": {Data: []byte("//limit:tests\n")},
		"backend/a/a.c":       {Data: []byte("/* limit:native */\n")},
		"gorail/b/b.go":       {Data: []byte("//limit:tool\n")},
	}
	require.Equal(t, []string{"limit:stray is not in the list", "no limit:gone in a/a.go", "no limit:native in a/b.c"},
		strays(t, tree, map[string]string{"known": "a/a.go", "native": "a/b.c", "gone": "a/a.go"}))
}

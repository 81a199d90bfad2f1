package proved

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// docs/proved.md is that of the rows and of the tests that exist.
func TestPage(t *testing.T) {
	want, err := Markdown(root)
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/proved.md"))
	require.NoError(t, err)
	require.True(t, string(page) == string(want), "docs/proved.md is stale: go run ./internal/pages")
}

// TestGroups: each promise of docs/promises.md has rows, and each group of rows is a heading there.
func TestGroups(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/promises.md"))
	require.NoError(t, err)
	rows, err := Rows(table)
	require.NoError(t, err)
	groups := map[string]bool{}
	for _, row := range rows {
		groups[row.Group] = true
	}
	for _, line := range strings.Split(string(page), "\n") {
		if heading, found := strings.CutPrefix(line, "## "); found {
			require.True(t, groups[heading], "no row of rows.txt is in the group %q", heading)
			delete(groups, heading)
		}
	}
	require.Empty(t, groups, "docs/promises.md has no such headings")
}

func tree(t *testing.T) *Tree {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/a_test.go":         "package a\n\nfunc TestOne(t *testing.T) {\n\tt.Run(\"sub case\", f)\n}\n\nfunc TestOneLong(t *testing.T) {\n\tif testing.Short() {\n\t\tt.Skip(\"long\")\n\t}\n}\n\nfunc TestLate(t *testing.T) {}\n",
		"test/rdma/r_test.go": "package r\n\nfunc TestGuest(t *testing.T) {}\n",
		"tools/go-test.sh":    "later='^Test(Late)$'\n",
		"tools/test-all.sh":   "run 1 'x' tools/test-rdma.sh\n",
		"Makefile":            "test-rdma: ## x\n\ttest-gpu\ntest-gpu: ## y\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	tree, err := Read(dir)
	require.NoError(t, err)
	return tree
}

func TestProve(t *testing.T) {
	for by, want := range map[string]string{
		"a: TestOne":                  "test",
		"a: TestOne/sub_case":         "test",
		"a: TestOne*":                 "test, test-all",
		"a: TestLate":                 "test-all",
		"a: TestOneLong":              "test-all",
		"test/rdma: TestGuest":        "test-rdma",
		"make: test-gpu; a: TestOne":  "test, test-gpu",
		"a: TestTwo":                  "no test of a is TestTwo",
		"a: Tes":                      "no test of a is Tes",
		"b: TestOne":                  "no test of b is TestOne",
		"a: TestOne/none":             "no subtest of TestOne in a is none",
		"make: test-gpu":              "nothing of the row",
		"make: test-xpu; a: TestLate": "no target test-xpu",
	} {
		rows, err := Rows("# G\n\nwhat: w\non: o\nby: " + by + "\nseen: s\n")
		require.NoError(t, err)
		_, runs, err := tree(t).prove(rows[0])
		if err != nil {
			runs = err.Error()
			require.Contains(t, runs, want)
			continue
		}
		require.Equal(t, want, runs, by)
	}
}

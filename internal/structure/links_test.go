package structure

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/wire"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]+))?\)`)
	quoted  = regexp.MustCompile(`\]\(([^)\s#]+\.md)\), "([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	noted   = regexp.MustCompile(`docs/([a-z-]+\.md)(?:, "([^"\n]+)")?`)
	odd     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors and the headings of a page.
func anchors(page string) (ids, titles map[string]bool) {
	ids, titles = map[string]bool{}, map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		titles[m[1]] = true
		ids[strings.ReplaceAll(odd.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		ids[m[1]] = true
	}
	return ids, titles
}

// files calls f with each file below the root that has one of the suffixes.
func files(t *testing.T, f func(path, text string), suffixes ...string) {
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "../.." {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "build" || d.Name() == "dist" || d.Name() == "shared" {
				return fs.SkipDir
			}
			return nil
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(path, suffix) {
				b, err := os.ReadFile(path)
				f(path, string(b))
				return err
			}
		}
		return nil
	}))
}

// TestLinks: each link of a page leads to a file that exists, and to an anchor that it has.
func TestLinks(t *testing.T) {
	n := 0
	files(t, func(path, text string) {
		if filepath.Base(path) == "page.md" {
			return // the beginning of a page of docs
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(path), m[1]))
			_, titles := anchors(string(b))
			assert.True(t, err == nil && titles[strings.TrimRight(m[2], ",.")], "%s: %s has no heading %q", path, m[1], m[2])
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			n++
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			b, err := os.ReadFile(to)
			if info, err2 := os.Stat(to); err2 == nil && info.IsDir() {
				err = nil
			}
			if !assert.NoError(t, err, path) || m[2] == "" {
				continue
			}
			ids, _ := anchors(string(b))
			assert.True(t, ids[m[2]], "%s: %s has no anchor %s", path, to, m[2])
		}
	}, ".md")
	require.Greater(t, n, 200, "the pages are read")
}

// TestNotes: a page that code names exists, and has the heading that stands behind its name in quotes.
func TestNotes(t *testing.T) {
	n := 0
	files(t, func(path, text string) {
		if strings.Contains(path, "internal/structure/") {
			return
		}
		for _, m := range noted.FindAllStringSubmatch(text, -1) {
			n++
			b, err := os.ReadFile("../../docs/" + m[1])
			if !assert.NoError(t, err, path) || m[2] == "" {
				continue
			}
			_, titles := anchors(string(b))
			assert.True(t, titles[m[2]] || strings.Contains(string(b), "**"+m[2]), "%s: docs/%s has no part %q", path, m[1], m[2])
		}
	}, ".go", ".c", ".h", ".cpp", ".py", ".sh", ".yaml")
	require.Greater(t, n, 50, "the code is read")
}

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
		guard:                 {Data: []byte("memcpy(a, b, n);\n")},
		"backend/b/b.h":       {Data: []byte("static void f() { memcpy(a, b, 4); } /* ours: a header */\n")},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"backend/a/a.c:2: memcpy(to, from, n);"}, list)
}

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

// TestNamedTests: these pages prove their claims by tests. Each test that they name exists, and each subtest, with
// underscores for spaces or as it is.
func TestNamedTests(t *testing.T) {
	var tests strings.Builder
	files(t, func(_, text string) { tests.WriteString(text) }, "_test.go")
	for _, name := range []string{"security.md", "frameworks.md"} {
		page, err := os.ReadFile("../../docs/" + name)
		require.NoError(t, err)
		named := regexp.MustCompile("`(Test\\w+)(\\*?)(?:/([^`]+))?`").FindAllStringSubmatch(string(page), -1)
		require.NotEmpty(t, named)
		for _, n := range named {
			end := "("
			if n[2] != "" {
				end = "" // the beginning of several names
			}
			require.True(t, strings.Contains(tests.String(), "\nfunc "+n[1]+end), "%s: no test is %s", name, n[0])
			spaced := strings.ReplaceAll(n[3], "_", " ")
			require.True(t, strings.Contains(tests.String(), `"`+spaced) || strings.Contains(tests.String(), `"`+n[3]), "%s: no subtest is %s", name, n[0])
		}
	}
}

// TestNamedOptions: each variable of GORAIL that docs/frameworks.md sets is one of docs/options.md.
func TestNamedOptions(t *testing.T) {
	page, err := os.ReadFile("../../docs/frameworks.md")
	require.NoError(t, err)
	options, err := os.ReadFile("../../docs/options.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`\bGORAIL_[A-Z_]+`).FindAllString(string(page), -1)
	require.NotEmpty(t, named)
	for _, n := range named {
		require.Contains(t, string(options), "| `"+n+"` |")
	}
}

// TestWays: the call lists of docs/architecture.md, "Four ways", name functions that their files have. A row is a file, names
// with commas between them, and what they do: two spaces or more stand between the three.
func TestWays(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(root + "/docs/architecture.md")
	require.NoError(t, err)
	_, part, ok := strings.Cut(string(page), "## Four ways\n")
	require.True(t, ok)
	part, _, _ = strings.Cut(part, "\n## ")
	columns := regexp.MustCompile(`\s{2,}`)
	n := 0
	for i, block := range strings.Split(part, "```") {
		if i%2 == 0 {
			continue // text between the lists
		}
		for _, row := range strings.Split(strings.Trim(block, "\n"), "\n") {
			cells := columns.Split(row, 3)
			require.GreaterOrEqual(t, len(cells), 2, row)
			text, err := os.ReadFile(root + "/" + cells[0])
			require.NoError(t, err)
			for _, name := range strings.Split(cells[1], ", ") {
				n++
				require.Regexp(t, `\b`+name+`\(`, string(text), "docs/architecture.md: %s has no %s", cells[0], name)
			}
		}
	}
	require.Greater(t, n, 40, "the lists are read")
	_, part, ok = strings.Cut(part, "**A failed link**")
	require.True(t, ok)
	way := slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`backend/[a-z_/]+\.(go|c)\b`).FindAllString(part, -1))))
	require.LessOrEqual(t, len(way), 15, "the way of a failed link: %q", way)
}

// TestVersion: the pages that name the version and the protocol's version say what VERSION and wire.Version say.
// docs/packaging.md, "To raise the version".
func TestVersion(t *testing.T) {
	page := func(name string) string {
		b, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		return string(b)
	}
	version := strings.TrimSuffix(page("VERSION"), "\n")
	require.Regexp(t, `^\d+\.\d+\.\d+$`, version)
	first := regexp.MustCompile(`(?m)^## .*$`).FindString(page("CHANGELOG.md"))
	require.Regexp(t, `^## `+regexp.QuoteMeta(version)+` \((unreleased|\d{4}-\d\d-\d\d)\)$`, first, "CHANGELOG.md's first section is for VERSION")
	require.Contains(t, page("docs/upgrade.md"), fmt.Sprintf("\n## This version: %s, wire version %d\n", version, wire.Version))
	require.Contains(t, page("gorail/go.mod"), "\tgorail v"+version+"\n", "the tool's module requires the plugin's")
	require.Contains(t, page("go.work"), "\nreplace gorail v"+version+" => ./\n")
	require.Contains(t, page("README.md"), fmt.Sprintf("protocol version (now %d)", wire.Version))
}

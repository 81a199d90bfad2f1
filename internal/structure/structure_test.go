package structure

import (
	"go/ast"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parsed reads the module once for all tests.
var parsed = sync.OnceValues(func() ([]*Package, error) { return Read(os.DirFS("../..")) })

func module(t *testing.T) []*Package {
	list, err := parsed()
	require.NoError(t, err)
	require.Greater(t, len(list), 40)
	return list
}

// TestBars checks the module against the bars, without exception.
func TestBars(t *testing.T) {
	for _, p := range module(t) {
		for _, b := range p.Breaches() {
			t.Error(b)
		}
	}
}

// TestOrder checks the plugin's packages against the order in docs/architecture.md.
func TestOrder(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	order, err := ParseOrder(string(page), "## The order of packages")
	require.NoError(t, err)
	require.Equal(t, "plugin", order[0])
	require.Contains(t, order, "provider/…")
	packages := map[string]bool{}
	for _, p := range module(t) {
		if p.Dir == "plugin" || strings.HasPrefix(p.Dir, "backend/") {
			packages[strings.TrimPrefix(p.Dir, "backend/")] = true
			for _, why := range order.Upward(p, "gorail") {
				t.Error(why)
			}
		}
	}
	for _, name := range order {
		assert.True(t, packages[strings.TrimSuffix(name, "/…")], "%s is in the order of packages, but not in the tree", name)
	}
}

// TestInterfaces: an interface of a package beside the providers' is in the fourth column of the order, because the package asks those above
// by it, or says what types of its own package have in common. Four ask those above.
func TestInterfaces(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(page), "## The order of packages\n")
	common := []string{"host.Conn", "wire.Frame"}
	var up []string
	for _, p := range module(t) {
		pkg := strings.TrimPrefix(p.Dir, "backend/")
		if pkg == p.Dir || strings.HasPrefix(pkg, "provider") {
			continue
		}
		for _, f := range p.Go {
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if _, is := s.Type.(*ast.InterfaceType); !is || slices.Contains(common, pkg+"."+s.Name.Name) {
					return true
				}
				up = append(up, pkg+"."+s.Name.Name)
				require.Regexp(t, `(?m)^ ?`+pkg+` .*\b`+s.Name.Name+`\b`, block, "an interface that the order of packages does not name")
				return true
			})
		}
	}
	require.Equal(t, []string{"peer.InitiatorHandler", "peer.TargetHandler", "staging.Session", "transfer.Session"}, up)
}

// measure returns the breaches in a tree of files.
func measure(t *testing.T, files map[string]string) (out []string) {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	list, err := Read(tree)
	require.NoError(t, err)
	for _, p := range list {
		for _, b := range p.Breaches() {
			out = append(out, b.String())
		}
	}
	return out
}

// many repeats a line n times.
func many(n int, line string) string { return strings.Repeat(line+"\n", n) }

func TestFiles(t *testing.T) {
	files := map[string]string{"a/test/x.c": many(700, ""), "a/ctest/x.c": many(700, ""), ".cache/a.go": many(700, ""), "build/a.go": many(700, ""), "a/a.txt": many(700, ""),
		"a/a_test.go": "package a\n" + many(700, ""), "a/a.c": many(500, "")}
	require.Empty(t, measure(t, files))
	files["a/a.h"] = many(501, "")
	require.Equal(t, []string{"lines a/a.h: 501, at most 500 "}, measure(t, files))
}

func TestFunctions(t *testing.T) {
	f := func(lines int) string { return "func F() {\n" + many(lines-2, "\tF()") + "}\n" }
	require.Empty(t, measure(t, map[string]string{"a/a.go": "package a\n" + f(80)}))
	require.Equal(t, []string{"func a/a.go F: 81, at most 80 "}, measure(t, map[string]string{"a/a.go": "package a\n// F\n" + f(81)}))
}

func TestFields(t *testing.T) {
	const nineteen = "a, b, c, d, e, f, g, h, i, j int\nk, l, m, n, o, p, q, r, s string\n"
	s := func(more string) map[string]string {
		return map[string]string{"a/a.go": "package a\ntype T struct {\n" + nineteen + more + "}\ntype E struct{}\n"}
	}
	require.Empty(t, measure(t, s("E\n")))
	require.Empty(t, measure(t, s("inner struct {\n"+nineteen+"}\n")), "each has a bar of its own")
	require.Equal(t, []string{"fields a/a.go T: 21, at most 20 "}, measure(t, s("E\nt int\n")))
	require.Equal(t, []string{"fields a/a.go inner: 21, at most 20 "}, measure(t, s("inner struct {\n"+nineteen+"t, u int\n}\n")))
	require.Equal(t, []string{"fields a/a.go local: 21, at most 20 "}, measure(t, map[string]string{
		"a/a.go": "package a\nfunc F() {\ntype local struct {\n" + nineteen + "t, u int\n}\n}\n"}))
}

func TestUpward(t *testing.T) {
	order, err := ParseOrder("# A\n## The order\n\nText.\n\n```\npackage  what\nplugin   all: exports\n engine  wiring,\n         and more\n provider/…  libraries\nprovider  their interface\nwire plan: pure\n```\nmore\n", "## The order")
	require.NoError(t, err)
	require.Equal(t, Order{"plugin", "engine", "provider/…", "provider", "wire", "plan"}, order)
	_, err = ParseOrder("# A\n", "## The order")
	require.Error(t, err)
	upward := func(dir string, imports ...string) []string {
		list, err := Read(fstest.MapFS{dir + "/a.go": {Data: []byte("package a\nimport (\n_ \"" + strings.Join(imports, "\"\n_ \"") + "\"\n)\n")}})
		require.NoError(t, err)
		return order.Upward(list[0], "m")
	}
	assert.Empty(t, upward("plugin", "fmt", "m/backend/engine", "m/backend/plan"))
	assert.Empty(t, upward("backend/provider/a", "m/backend/provider", "m/backend/provider/b/c", "m/backend/wire"))
	assert.Empty(t, upward("backend/wire", "m/backend/plan"))
	assert.Equal(t, []string{"backend/plan imports backend/wire"}, upward("backend/plan", "m/backend/wire"), "left of it in the same row")
	assert.Equal(t, []string{"backend/provider imports backend/provider/a"}, upward("backend/provider", "m/backend/provider/a"), "the interface knows none")
	assert.Equal(t, []string{"backend/provider/a imports backend/engine"}, upward("backend/provider/a", "m/backend/engine"))
	assert.Equal(t, []string{"backend/engine imports plugin", "backend/engine imports test/worker"}, upward("backend/engine", "m/plugin", "m/test/worker"))
	assert.Equal(t, []string{"backend/engine imports backend/new"}, upward("backend/engine", "m/backend/new"))
	assert.Equal(t, []string{"backend/new is not in the order of packages"}, upward("backend/new", "fmt"))
}

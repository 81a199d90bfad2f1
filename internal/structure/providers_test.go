package structure

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProviders: the folders of providers have the same files, and the comment of package provider names each of its interfaces.
func TestProviders(t *testing.T) {
	comment, err := os.ReadFile("../../backend/provider/doc.go")
	require.NoError(t, err)
	found, interfaces := 0, 0
	for _, p := range module(t) {
		if path.Dir(p.Dir) == "backend/provider" && p.Lines["rail.go"] > 0 {
			found++
			for _, name := range []string{"provider.go", "endpoint.go", "mr.go", "vram.go"} {
				assert.Positive(t, p.Lines[name], "%s has no %s, as other providers have", p.Dir, name)
			}
		}
		if p.Dir != "backend/provider" {
			continue
		}
		for _, f := range p.Go {
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.TypeSpec); ok {
					if _, is := s.Type.(*ast.InterfaceType); is {
						interfaces++
						assert.True(t, strings.Contains(string(comment), "//   - "+s.Name.Name+":"), "the comment of package provider does not list %s", s.Name.Name)
					}
				}
				return true
			})
		}
	}
	require.GreaterOrEqual(t, found, 4)
	require.LessOrEqual(t, interfaces, 4+10, "four that each provider implements, and ten optional parts")
}

// TestAarch64: of the packages that make test-aarch64 tests in part, those with C below them are in its list.
func TestAarch64(t *testing.T) {
	plan, err := os.ReadFile("../../tools/aarch64/plan.sh")
	require.NoError(t, err)
	list, err := os.ReadFile("../../tools/aarch64/packages.sh")
	require.NoError(t, err)
	with := regexp.MustCompile(`(?m)^with_c='(.*)'$`).FindStringSubmatch(string(list))
	require.Len(t, with, 2)
	named := strings.Fields(with[1])
	cases := regexp.MustCompile(`(?m)^ +(backend/[a-z/]+)\) some=`).FindAllStringSubmatch(string(plan), -1)
	require.NotEmpty(t, cases)
	for _, c := range cases {
		for _, p := range module(t) {
			if p.Dir != c[1] && !strings.HasPrefix(p.Dir, c[1]+"/") || slices.Contains(named, c[1]) {
				continue
			}
			for _, f := range p.Go {
				assert.False(t, slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"C"` }),
					"%s has C (%s), and is not in with_c of tools/aarch64/packages.sh", c[1], p.Dir)
			}
		}
	}
}

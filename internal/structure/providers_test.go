package structure

import (
	"go/ast"
	"os"
	"path"
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
	require.LessOrEqual(t, interfaces, 4+7, "four that each provider implements, and seven optional parts")
}

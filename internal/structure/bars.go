package structure

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
)

// The bars: the maximum values.
const (
	MostLines  = 500 // of a file
	MostFunc   = 80  // lines of a function
	MostFields = 20  // of a struct; a nested struct counts as one field and is checked separately
)

// Breach is a value above a bar.
type Breach struct {
	Where     string // "lines FILE", "func FILE NAME" or "fields FILE NAME"
	Got, Most int
	Note      string
}

func (b Breach) String() string {
	return fmt.Sprintf("%s: %d, at most %d %s", b.Where, b.Got, b.Most, b.Note)
}

// Breaches returns all values of a package above a bar.
func (p *Package) Breaches() []Breach {
	var out []Breach
	check := func(got, most int, note, format string, args ...any) {
		if got > most {
			out = append(out, Breach{fmt.Sprintf(format, args...), got, most, note})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Lines)) {
		check(p.Lines[name], MostLines, "", "lines %s", path.Join(p.Dir, name))
	}
	for _, f := range p.Go {
		file := path.Join(p.Dir, p.fileOf(f.Package))
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(p.fset.Position(n.End()).Line-p.fset.Position(n.Pos()).Line+1, MostFunc, "", "func %s %s", file, n.Name.Name)
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					check(fields(s), MostFields, "", "fields %s %s", file, n.Name.Name)
				}
			case *ast.Field: // a struct without a name
				if s, ok := n.Type.(*ast.StructType); ok && len(n.Names) > 0 {
					check(fields(s), MostFields, "", "fields %s %s", file, n.Names[0].Name)
				}
			}
			return true
		})
	}
	return out
}

func fields(s *ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names)) // an embedded field has no name
	}
	return n
}

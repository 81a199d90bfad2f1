package structure

import (
	"errors"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
)

// Circles returns the sets of files that need each other, directly or through other files. A file needs another file if
// it names a type, function, method, field, variable or constant of that file.
func (p *Package) Circles() [][]string {
	needs := p.needs()
	reach := map[string]map[string]bool{}
	for from := range needs {
		reach[from] = map[string]bool{}
		follow(needs, from, reach[from])
	}
	var out [][]string
	for _, from := range slices.Sorted(maps.Keys(needs)) {
		if !reach[from][from] {
			continue
		}
		circle := []string{}
		for to := range reach[from] {
			if reach[to][from] {
				circle = append(circle, to)
			}
		}
		slices.Sort(circle)
		if circle[0] == from {
			out = append(out, circle)
		}
	}
	return out
}

func follow(needs map[string]map[string]bool, from string, seen map[string]bool) {
	for to := range needs[from] {
		if !seen[to] {
			seen[to] = true
			follow(needs, to, seen)
		}
	}
}

// noImports imports no package: names of other packages do not matter.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.ErrUnsupported }

// needs maps each file to the package's files that it needs.
func (p *Package) needs() map[string]map[string]bool {
	uses := map[*ast.Ident]types.Object{}
	conf := types.Config{Error: func(error) {}, Importer: noImports{}, FakeImportC: true}
	pkg, _ := conf.Check(p.Dir, p.fset, p.Go, &types.Info{Uses: uses}) // errors concern names of other packages
	needs := map[string]map[string]bool{}
	for id, o := range uses {
		if o.Pkg() != pkg || o.Pos() == token.NoPos {
			continue
		}
		from, to := p.fileOf(id.Pos()), p.fileOf(o.Pos())
		if from == to {
			continue
		}
		if needs[from] == nil {
			needs[from] = map[string]bool{}
		}
		needs[from][to] = true
	}
	return needs
}

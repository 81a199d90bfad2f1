// Package structure measures the tree against the bars that keep its parts small: files of a package, lines of a file
// or a function, fields of a struct, circles of files, and the import order of packages. Its test enforces the bars.
package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Package is one folder of product files, without test files.
type Package struct {
	Dir   string
	Lines map[string]int // of each file, Go and C, by name
	Go    []*ast.File

	fset *token.FileSet
}

// Read returns the packages of a module in order. It skips hidden folders and build folders.
func Read(root fs.FS) ([]*Package, error) {
	byDir := map[string]*Package{}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && skipped(p):
			return fs.SkipDir
		case d.IsDir() || !product(p):
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		pkg := byDir[path.Dir(p)]
		if pkg == nil {
			pkg = &Package{Dir: path.Dir(p), Lines: map[string]int{}, fset: token.NewFileSet()}
			byDir[pkg.Dir] = pkg
		}
		return pkg.add(path.Base(p), text)
	})
	var list []*Package
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		list = append(list, byDir[dir])
	}
	return list, err
}

func skipped(dir string) bool {
	base := path.Base(dir)
	return strings.HasPrefix(base, ".") || base == "testdata" || strings.HasPrefix(dir, "build")
}

// product reports whether a file is product source. C below test and ctest is not.
func product(p string) bool {
	switch path.Ext(p) {
	case ".go":
		return !strings.HasSuffix(p, "_test.go")
	case ".c", ".h", ".cpp", ".S":
		return !slices.ContainsFunc(strings.Split(path.Dir(p), "/"), func(dir string) bool { return dir == "test" || dir == "ctest" })
	}
	return false
}

func (p *Package) add(name string, text []byte) error {
	p.Lines[name] = strings.Count(string(text), "\n")
	if path.Ext(name) != ".go" {
		return nil
	}
	f, err := parser.ParseFile(p.fset, path.Join(p.Dir, name), text, parser.SkipObjectResolution)
	if err == nil {
		p.Go = append(p.Go, f)
	}
	return err
}

// fileOf returns the name of the file at a position.
func (p *Package) fileOf(at token.Pos) string { return path.Base(p.fset.Position(at).Filename) }

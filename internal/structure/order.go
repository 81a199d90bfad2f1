package structure

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Order lists the packages of the plugin from the top down. Each entry is a name below backend/, or plugin.
type Order []string

// wide matches the end of a row's names.
var wide = regexp.MustCompile(`:|\s{2,}`)

// ParseOrder reads the list in docs/architecture.md: the first column of the block below a heading, without its first
// row. A row has one name, or several names separated by one space. A row indented by more than one space continues the
// row above.
func ParseOrder(page, heading string) (Order, error) {
	_, rest, found := strings.Cut(page, heading+"\n")
	parts := strings.SplitN(rest, "```", 3)
	if !found || len(parts) < 3 {
		return nil, fmt.Errorf("no block below %q", heading)
	}
	rows := strings.Split(strings.Trim(parts[1], "\n"), "\n")
	var order Order
	for _, row := range rows[1:] {
		if !strings.HasPrefix(row, "  ") {
			order = append(order, strings.Fields(wide.Split(strings.TrimSpace(row), 2)[0])...)
		}
	}
	return order, nil
}

// place returns the position of a folder in the order; -1 if it is not in the order. Folders below another have the position of the row
// "another/…", or else of the other.
func (o Order) place(dir string) int {
	name := strings.TrimPrefix(dir, "backend/")
	top, _, below := strings.Cut(name, "/")
	if at := slices.Index(o, top+"/…"); at >= 0 && below {
		return at
	}
	return slices.Index(o, top)
}

// Upward returns the imports of a package that the order forbids. These include imports from outside the plugin.
func (o Order) Upward(p *Package, module string) (out []string) {
	from := o.place(p.Dir)
	if from < 0 {
		return []string{p.Dir + " is not in the order of packages"}
	}
	imports := map[string]bool{}
	for _, f := range p.Go {
		for _, spec := range f.Imports {
			if name, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(name, module+"/") {
				imports[strings.TrimPrefix(name, module+"/")] = true
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(imports)) {
		if to := o.place(dir); to < from || !strings.HasPrefix(dir, "backend/") {
			out = append(out, p.Dir+" imports "+dir)
		}
	}
	return out
}

// Package proved makes docs/proved.md: what is promised, the tests that prove it, what runs them, and the hardware seen.
package proved

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed rows.txt
var table string

//go:embed page.md
var page string

// Row is one line of the page.
type Row struct {
	Group    string // a heading of docs/promises.md
	What     string
	On       string // fabrics; memory
	By       []Proof
	Unproven string // why no test proves it
	Seen     string // hardware
}

// Proof names the tests of one folder, or targets of make if Folder is "make".
type Proof struct {
	Folder string
	Names  []string // a name may end in *, or have a subtest behind a slash
}

// Rows parses the table: groups begin with "# ", records of four lines end with an empty line.
func Rows(text string) (rows []Row, err error) {
	group := ""
	for _, record := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if name, found := strings.CutPrefix(record, "# "); found {
			group = name
			continue
		}
		row := Row{Group: group}
		by := ""
		for _, line := range strings.Split(record, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			switch key {
			case "what":
				row.What = value
			case "on":
				row.On = value
			case "by":
				by = value
			case "seen":
				row.Seen = value
			default:
				return nil, fmt.Errorf("rows.txt: a line begins with %q", key)
			}
		}
		if group == "" || row.What == "" || row.On == "" || by == "" || row.Seen == "" {
			return nil, fmt.Errorf("rows.txt: an incomplete record: %q", record)
		}
		if why, found := strings.CutPrefix(by, "unproven: "); found {
			row.Unproven = why
		} else {
			for _, part := range strings.Split(by, "; ") {
				folder, names, found := strings.Cut(part, ": ")
				if !found {
					return nil, fmt.Errorf("rows.txt: no folder in %q", part)
				}
				row.By = append(row.By, Proof{folder, strings.Fields(names)})
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Markdown returns the text of docs/proved.md, for the tests of the tree at root. It fails if a row names no test.
func Markdown(root string) ([]byte, error) {
	rows, err := Rows(table)
	if err != nil {
		return nil, err
	}
	tree, err := Read(root)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	group := ""
	for _, row := range rows {
		if row.Group != group {
			group = row.Group
			fmt.Fprintf(&b, "| <a id=\"%s\"></a>**[%s](promises.md#%[1]s)** | | | | |\n", Anchor(group), group)
		}
		by, runs, err := tree.prove(row)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", row.What, row.On, by, runs, row.Seen)
	}
	return []byte(strings.Replace(page, "{{rows}}\n", b.String(), 1)), nil
}

var other = regexp.MustCompile(`[^a-z0-9 -]`)

// Anchor is the anchor of a heading.
func Anchor(heading string) string {
	return strings.ReplaceAll(other.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// prove returns two cells: the names of a row's tests, and the targets of make that run them.
func (t *Tree) prove(row Row) (by, runs string, err error) {
	if row.Unproven != "" {
		return "**unproven**: " + row.Unproven, "", nil
	}
	var cells []string
	targets := map[string]bool{}
	held := false
	for _, proof := range row.By {
		for _, name := range proof.Names {
			found, err := t.find(proof.Folder, name)
			if err != nil {
				return "", "", fmt.Errorf("%w, in the row %q", err, row.What)
			}
			for _, target := range found {
				targets[target] = true
				held = held || target == "test" || slices.Contains(t.all, target)
			}
		}
		cells = append(cells, short(proof.Folder)+" `"+strings.Join(proof.Names, "`, `")+"`")
	}
	if !held {
		return "", "", fmt.Errorf("nothing of the row %q runs in make test or make test-all", row.What)
	}
	var list []string
	for target := range targets {
		list = append(list, target)
	}
	slices.Sort(list)
	return strings.Join(cells, "; "), strings.Join(list, ", "), nil
}

var outer = regexp.MustCompile(`^(backend/provider|backend)/`)

// short is the name of a folder in the page.
func short(folder string) string {
	if folder == "test/e2e" {
		return "e2e"
	}
	return outer.ReplaceAllString(folder, "")
}

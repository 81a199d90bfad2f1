package proved

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Tree is what the files say of tests and of what runs them.
type Tree struct {
	tests map[string]map[string]string // by folder and name: the function's text
	texts map[string]string            // by folder: all of its files
	later *regexp.Regexp               // tests that tools/go-test.sh leaves to make test-all
	goals []string                     // targets of Makefile
	all   []string                     // targets that are a part of make test-all, and test-all
}

var (
	function = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
	laterRow = regexp.MustCompile(`(?m)^later='(.+)'$`)
	goal     = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)
	stage    = regexp.MustCompile(`tools/(?:test-)?([a-z-]+)\.sh`)
	long     = regexp.MustCompile(`^[^\n]*\n\s*if testing\.Short\(\) \{[^\n]*\n\s*t\.Skip`)
)

// Read reads the tests and scripts below a folder.
func Read(root string) (*Tree, error) {
	t := &Tree{tests: map[string]map[string]string{}, texts: map[string]string{}, all: []string{"test-all", "test-wheels"}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"build", "dist", "docs"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".c" && ext != ".h" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		t.texts[folder] += string(b)
		if strings.HasSuffix(path, "_test.go") {
			t.add(folder, string(b))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, t.readScripts(root)
}

func (t *Tree) add(folder, text string) {
	if t.tests[folder] == nil {
		t.tests[folder] = map[string]string{}
	}
	at := function.FindAllStringSubmatchIndex(text, -1)
	for _, m := range at {
		t.tests[folder][text[m[2]:m[3]]] = text[m[0]:]
	}
}

// readScripts reads what make test leaves out, and what make test-all runs.
func (t *Tree) readScripts(root string) error {
	var text [3]string
	for i, name := range []string{"tools/go-test.sh", "Makefile", "tools/test-all.sh"} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		text[i] = string(b)
	}
	row := laterRow.FindStringSubmatch(text[0])
	if row == nil {
		return fmt.Errorf("tools/go-test.sh has no line later='...'")
	}
	var err error
	if t.later, err = regexp.Compile(row[1]); err != nil {
		return err
	}
	for _, m := range goal.FindAllStringSubmatch(text[1], -1) {
		t.goals = append(t.goals, m[1])
	}
	for _, m := range stage.FindAllStringSubmatch(text[2], -1) {
		t.all = append(t.all, m[1], "test-"+m[1])
	}
	return nil
}

// find returns what runs the tests of a name.
func (t *Tree) find(folder, name string) (targets []string, err error) {
	if folder == "make" {
		if !slices.Contains(t.goals, name) {
			return nil, fmt.Errorf("no target %s in Makefile", name)
		}
		return []string{name}, nil
	}
	name, subtest, _ := strings.Cut(name, "/")
	begin, several := strings.CutSuffix(name, "*")
	for test, text := range t.tests[folder] {
		if test == name || several && strings.HasPrefix(test, begin) {
			if run := t.runner(folder, test, text); !slices.Contains(targets, run) {
				targets = append(targets, run)
			}
		}
	}
	if targets == nil {
		return nil, fmt.Errorf("no test of %s is %s", folder, name)
	}
	words := t.texts[folder] + t.texts[folder+"/ctest"]
	if subtest != "" && !strings.Contains(words, `"`+subtest) && !strings.Contains(words, `"`+strings.ReplaceAll(subtest, "_", " ")) {
		return nil, fmt.Errorf("no subtest of %s in %s is %s", name, folder, subtest)
	}
	return targets, nil
}

// runner is the target of make that runs a test.
func (t *Tree) runner(folder, test, text string) string {
	switch {
	case strings.HasPrefix(test, "Benchmark"):
		return "by hand"
	case strings.HasPrefix(test, "TestReal"):
		return "test-gpu"
	case strings.HasPrefix(folder, "test/rdma"):
		return "test-rdma"
	case t.later.MatchString(test), long.MatchString(text):
		return "test-all"
	}
	return "test"
}

// Command nextabi compares the plugin interface of a NIXL source tree, or of an installed include folder, with GORAIL's declarations of it, and
// prints in words what moved. tools/next-abi.sh runs it. Exit status 0: nothing moved; 1: something did; 2: wrong use.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(errs, "usage: next-abi.sh NIXL_TREE (a source tree of NIXL, or a folder with its headers)")
		return 2
	}
	root, tree := args[0], args[1]
	ours, err := read(filepath.Join(root, "cshim"))
	if err == nil && len(ours.classes[engine].functions) == 0 {
		err = fmt.Errorf("%s has no class %s", filepath.Join(root, "cshim"), engine)
	}
	if err != nil {
		fmt.Fprintln(errs, "next-abi:", err)
		return 2
	}
	dir := filepath.Join(tree, "src", "api", "cpp")
	if _, err := os.Stat(dir); err != nil {
		dir = tree
	}
	theirs, err := read(dir)
	if err == nil && len(theirs.classes[engine].functions) == 0 {
		err = fmt.Errorf("%s has no class %s: name a source tree of NIXL, or a folder with its headers", dir, engine)
	}
	if err != nil {
		fmt.Fprintln(errs, "next-abi:", err)
		return 2
	}
	answered, err := answered(root)
	if err != nil {
		fmt.Fprintln(errs, "next-abi:", err)
		return 2
	}
	moved := compare(ours, theirs, answered)
	for _, line := range moved {
		fmt.Fprintln(out, line)
	}
	if len(moved) > 0 {
		return 1
	}
	fmt.Fprintf(out, "nothing moved: %d functions in the same order, the same members and values\n", len(theirs.classes[engine].functions))
	return 0
}

// answered returns the names of functions that the plugin answers for a NIXL that has them in addition.
func answered(root string) (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "cshim", "identify", "known_tables.cpp"))
	if err != nil {
		return nil, err
	}
	_, list, found := strings.Cut(string(text), "known_additions[] = {")
	list, _, end := strings.Cut(list, "\n};")
	if !found || !end {
		return nil, fmt.Errorf("cshim/identify/known_tables.cpp has no list known_additions")
	}
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`"_ZNK?@(\d+)(\w+)`).FindAllStringSubmatch(list, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil && n <= len(m[2]) {
			all[m[2][:n]] = true
		}
	}
	return all, nil
}

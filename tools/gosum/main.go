// Command gosum reads `go test -json` and prints one line a package, the output of what failed, the reason of each skip,
// and a totals line. It exits with 1 when something failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build output
	Elapsed                       float64
}

// summary collects what the totals line says.
type summary struct {
	out                   io.Writer
	pass, fail, skip      int
	packages, badPackages int
	text                  map[string][]string // output so far, by package and test
}

func main() {
	s := &summary{out: os.Stdout, text: map[string][]string{}}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "gosum:", err)
		os.Exit(2)
	}
	fmt.Fprintf(s.out, "TOTAL go test: %d packages, %d tests passed, %d failed, %d skipped\n", s.packages, s.pass, s.fail, s.skip)
	if s.fail+s.badPackages > 0 {
		os.Exit(1)
	}
}

// read handles all events; what is not one (a tool's message) is passed on.
func (s *summary) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(s.out, line)
			} else {
				s.event(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		s.text[key] = append(s.text[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.pkg(e)
		} else {
			s.test(e, key)
		}
		delete(s.text, key)
	}
}

func (s *summary) pkg(e event) {
	tested := !strings.Contains(strings.Join(s.text[e.Package+" "], ""), "[no test files]")
	if tested {
		s.packages++
		fmt.Fprintf(s.out, "%-5s %-40s %6.1fs\n", e.Action, e.Package, e.Elapsed)
	}
	if e.Action == "fail" {
		s.badPackages++
		fmt.Fprint(s.out, strings.Join(s.text[e.Package+" "], ""))
		s.unfinished(e.Package)
	}
}

// unfinished prints what tests said that a crash or a timeout of their package has ended.
func (s *summary) unfinished(pkg string) {
	const most = 100 // lines; a dump of goroutines begins with the one that matters
	for _, key := range slices.Sorted(maps.Keys(s.text)) {
		if test, ok := strings.CutPrefix(key, pkg+" "); ok && test != "" {
			lines := s.text[key]
			fmt.Fprintf(s.out, "FAIL  %s %s: not finished\n%s", pkg, test, strings.Join(lines[:min(len(lines), most)], ""))
			delete(s.text, key)
		}
	}
}

func (s *summary) test(e event, key string) {
	switch e.Action {
	case "pass":
		s.pass++
	case "skip":
		s.skip++
		fmt.Fprintf(s.out, "skip  %s %s: %s\n", e.Package, e.Test, reason(s.text[key]))
	case "fail":
		s.fail++
		fmt.Fprintf(s.out, "FAIL  %s %s\n%s", e.Package, e.Test, strings.Join(s.text[key], ""))
	}
}

// reason is what t.Skip was told: the last line of output that is no marker.
func reason(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if l := strings.TrimSpace(lines[i]); l != "" && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "===") {
			return l
		}
	}
	return "no reason given"
}

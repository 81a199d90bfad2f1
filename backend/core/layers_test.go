package core_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layers are the internal headers of the C core from the lowest up. Above them is what Go and the shim call, which has gr_policy.h and gr_core.h.
var layers = []string{"base.h", "link.h", "transfer.h", "control.h"}

// TestLayers: a header includes the header of the layer below. A C file includes the header of its own layer and none
// above. Calls go down, but for those that base.h lists as calls up, and files do not call each other in circles. doc.go has the picture.
func TestLayers(t *testing.T) {
	text := map[string]string{}
	names, err := filepath.Glob("*.[ch]")
	require.NoError(t, err)
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		text[name] = string(b)
	}
	require.Len(t, upward(text["base.h"]), 3)
	require.Empty(t, breaches(text))
}

// upward lists the functions that base.h declares as calls up.
func upward(base string) (names []string) {
	_, section, _ := strings.Cut(base, "/* ---- Calls up: ")
	for _, m := range declaration.FindAllStringSubmatch(noise.ReplaceAllString("/*"+section, ""), -1) {
		names = append(names, m[1])
	}
	return names
}

var (
	includes    = regexp.MustCompile(`(?m)^#include "(.+)"`)
	noise       = regexp.MustCompile(`(?s)/\*.*?\*/|"(?:\\.|[^"\\\n])*"`)
	definition  = regexp.MustCompile(`(?m)^(?:static )?(?:inline )?[a-z_]\w*(?: [a-z_]\w*)*[ *]+([a-z_]\w*)\([^;{}]*\)\n?\s*\{`)
	declaration = regexp.MustCompile(`(?m)^[a-z_]\w*(?: [a-z_]\w*)*[ *]+([a-z_]\w*)\([^;{}]*\);`)
	use         = regexp.MustCompile(`(->|\.)?\b([a-z_]\w*)\b`)
)

// breaches lists what is wrong with the headers and C files, given by name.
func breaches(text map[string]string) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, l := range layers {
		if got, want := layersOf(text[l]), layers[max(i-1, 0):i]; !slices.Equal(got, want) {
			complain("%s includes %v, want %v", l, got, want)
		}
	}
	up := upward(text["base.h"])
	declared, defined, layer := map[string]string{}, map[string]string{}, map[string]int{}
	for _, l := range layers {
		for _, m := range declaration.FindAllStringSubmatch(noise.ReplaceAllString(text[l], ""), -1) {
			if !slices.Contains(up, m[1]) {
				declared[m[1]] = l
			}
		}
	}
	files := slices.Sorted(func(yield func(string) bool) {
		for name := range text {
			if filepath.Ext(name) == ".c" && !yield(name) {
				return
			}
		}
	})
	for _, file := range files {
		own := layersOf(text[file])
		if len(own) != 1 {
			complain("%s includes %v, want the header of one layer", file, own)
			continue
		}
		layer[file] = slices.Index(layers, own[0])
		serves := false
		for _, m := range definition.FindAllStringSubmatch(noise.ReplaceAllString(text[file], ""), -1) {
			if !strings.HasPrefix(m[0], "static") {
				defined[m[1]] = file
				serves = serves || declared[m[1]] == own[0]
			}
		}
		if own[0] == layers[len(layers)-1] && !serves {
			layer[file] = len(layers)
		}
	}
	named := append(slices.Clone(layers), "control")
	for f, header := range declared {
		if file, ok := defined[f]; ok && named[layer[file]] != header {
			complain("%s is declared in %s, defined in %s (%s)", f, header, file, named[layer[file]])
		}
	}
	calls := map[string][]string{}
	for _, file := range files {
		for _, m := range use.FindAllStringSubmatch(noise.ReplaceAllString(text[file], ""), -1) {
			to, ok := defined[m[2]]
			if !ok || m[1] != "" || slices.Contains(up, m[2]) || to == file || slices.Contains(calls[file], to) {
				continue
			}
			calls[file] = append(calls[file], to)
			if layer[to] > layer[file] {
				complain("%s (%s) uses %s of %s (%s)", file, named[layer[file]], m[2], to, named[layer[to]])
			}
		}
	}
	for _, c := range circles(files, calls) {
		complain("circle: %s", strings.Join(c, ", "))
	}
	return wrong
}

func layersOf(text string) (found []string) {
	for _, m := range includes.FindAllStringSubmatch(text, -1) {
		if slices.Contains(layers, m[1]) {
			found = append(found, m[1])
		}
	}
	return found
}

// circles returns the sets of files that reach each other.
func circles(files []string, calls map[string][]string) (found [][]string) {
	reach := map[string]map[string]bool{}
	for _, from := range files {
		seen := map[string]bool{}
		for todo := slices.Clone(calls[from]); len(todo) > 0; {
			f := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if !seen[f] {
				seen[f] = true
				todo = append(todo, calls[f]...)
			}
		}
		reach[from] = seen
	}
	for i, from := range files {
		var circle []string
		for j, to := range files {
			if i != j && reach[from][to] && reach[to][from] {
				circle = append(circle, to)
			}
		}
		if len(circle) > 0 && from < circle[0] {
			found = append(found, append([]string{from}, circle...))
		}
	}
	return found
}

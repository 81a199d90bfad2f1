package structure

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]+))?\)`)
	quoted  = regexp.MustCompile(`\]\(([^)\s#]+\.md)\), "([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	noted   = regexp.MustCompile(`docs/([a-z-]+\.md)(?:, "([^"\n]+)")?`)
	odd     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors and the headings of a page.
func anchors(page string) (ids, titles map[string]bool) {
	ids, titles = map[string]bool{}, map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		titles[m[1]] = true
		ids[strings.ReplaceAll(odd.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		ids[m[1]] = true
	}
	return ids, titles
}

// files calls f with each file below the root that has one of the suffixes.
func files(t *testing.T, f func(path, text string), suffixes ...string) {
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "../.." {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "build" || d.Name() == "dist" || d.Name() == "shared" {
				return fs.SkipDir
			}
			return nil
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(path, suffix) {
				b, err := os.ReadFile(path)
				f(path, string(b))
				return err
			}
		}
		return nil
	}))
}

// TestLinks: each link of a page leads to a file that exists, and to an anchor that it has.
func TestLinks(t *testing.T) {
	n := 0
	files(t, func(path, text string) {
		if filepath.Base(path) == "page.md" {
			return // the beginning of a page of docs
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(path), m[1]))
			_, titles := anchors(string(b))
			assert.True(t, err == nil && titles[strings.TrimRight(m[2], ",.")], "%s: %s has no heading %q", path, m[1], m[2])
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			n++
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			b, err := os.ReadFile(to)
			if info, err2 := os.Stat(to); err2 == nil && info.IsDir() {
				err = nil
			}
			if !assert.NoError(t, err, path) || m[2] == "" {
				continue
			}
			ids, _ := anchors(string(b))
			assert.True(t, ids[m[2]], "%s: %s has no anchor %s", path, to, m[2])
		}
	}, ".md")
	require.Greater(t, n, 200, "the pages are read")
}

// TestNotes: a page that code names exists, and has the heading that stands behind its name in quotes.
func TestNotes(t *testing.T) {
	n := 0
	files(t, func(path, text string) {
		if strings.Contains(path, "internal/structure/") {
			return
		}
		for _, m := range noted.FindAllStringSubmatch(text, -1) {
			n++
			b, err := os.ReadFile("../../docs/" + m[1])
			if !assert.NoError(t, err, path) || m[2] == "" {
				continue
			}
			_, titles := anchors(string(b))
			assert.True(t, titles[m[2]] || strings.Contains(string(b), "**"+m[2]), "%s: docs/%s has no part %q", path, m[1], m[2])
		}
	}, ".go", ".c", ".h", ".cpp", ".py", ".sh", ".yaml")
	require.Greater(t, n, 50, "the code is read")
}

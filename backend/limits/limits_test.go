package limits_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
)

// docs/limits.md is that of the list.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	require.NoError(t, err)
	require.True(t, string(page) == string(limits.Markdown()), "docs/limits.md is stale: go run ./internal/pages")
}

// Each row is complete, and its option exists, or a reason says why it has none.
func TestRows(t *testing.T) {
	var options []string
	for _, o := range option.Defaults() {
		options = append(options, o.Name)
	}
	names := map[string]bool{}
	for _, r := range limits.List {
		require.Regexp(t, `^[a-z_]+$`, r.Name)
		assert.False(t, names[r.Name], "two rows %s", r.Name)
		names[r.Name] = true
		assert.True(t, r.Resource != "" && r.Where != "" && r.Bound != "" && r.Beyond != "", r.Name)
		assert.NotEqual(t, r.Option == "", r.Why == "", "%s: an option, or the reason of a constant", r.Name)
		if r.Option != "" {
			assert.Contains(t, options, r.Option, r.Name)
		}
		assert.NotContains(t, strings.Join([]string{r.Resource, r.Bound, r.Beyond, r.Why}, ""), "|", r.Name)
	}
}

// Each counter is in stats_file.
func TestCounters(t *testing.T) {
	var counts limits.Counts
	known := map[string]bool{}
	for name := range counts.Read() {
		known["limits."+name] = true
	}
	for name := range coreCounters(t) {
		known["core."+name] = true
	}
	control, err := json.Marshal(peer.Stats{})
	require.NoError(t, err)
	var fields map[string]uint64
	require.NoError(t, json.Unmarshal(control, &fields))
	for name := range fields {
		known["control."+name] = true
	}
	for i, r := range limits.List {
		if r.Counter == "" {
			continue
		}
		assert.True(t, known[r.Counter], "%s counts as %s, which stats_file does not have", r.Name, r.Counter)
		if own, ok := strings.CutPrefix(r.Counter, "limits."); ok {
			counts.Hit(limits.Limit(i))
			counts.Add(limits.Limit(i), 2)
			assert.EqualValues(t, 3, counts.Read()[own], r.Name)
		}
	}
	var none *limits.Counts
	none.Hit(limits.Sessions) // counts nothing
}

func coreCounters(t *testing.T) map[string]uint64 {
	k, err := core.New(core.Config{})
	require.NoError(t, err)
	defer k.Free()
	defer k.Stop()
	return k.Counters()
}

// Each test exists.
func TestTests(t *testing.T) {
	for _, r := range limits.List {
		dir, name, ok := strings.Cut(r.Test, " ")
		require.True(t, ok, r.Name)
		files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
		require.NoError(t, err)
		declared := regexp.MustCompile(`(?m)^func ` + name + `\(t \*testing\.T\)`)
		assert.True(t, slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && declared.Match(text)
		}), "%s: there is no test %s in backend/%s", r.Name, name, dir)
	}
}

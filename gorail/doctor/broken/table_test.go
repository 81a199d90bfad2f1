// Package broken has broken set-ups of a machine. TestSetups makes each, runs gorail doctor or an agent there, and compares the first
// FAIL or the line of the log. Then it applies the remedy, and nothing fails.
package broken

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor"
	"gorail/test/docpage"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// setup is a row of the table.
type setup struct {
	name   string
	made   string // how the set-up is made
	id     string // of the first FAIL; logs: the line is from an agent's log
	says   string // words of that line
	remedy string // what is applied then
	warns  bool   // the line is a WARN
	user   bool   // needs no root
	quick  bool   // also with -short
	try    func(s *scene, remedied bool) found
}

// logs is the id of a set-up whose line is from an agent's log.
const logs = "log"

// found is the first FAIL of a run, or the line of a log. Without a failure id is "".
type found struct {
	id, text, remedy string
	report           *doctor.Report // of doctor
}

// first is what a set-up is about: the first FAIL, or with warns the WARN of its check if nothing fails.
func (row *setup) first(f found) found {
	if !row.warns || f.id != "" {
		return f
	}
	for _, c := range f.report.Checks {
		if c.ID == row.id && c.Status == doctor.Warn {
			return found{c.ID, c.Text, c.Remedy, f.report}
		}
	}
	return f
}

// table is every set-up.
func table() (all []setup) {
	for _, list := range [][]setup{options, software, memory, processes, folders, peers, agents} {
		all = append(all, list...)
	}
	return all
}

// TestSetups tries every set-up, broken and with its remedy. GORAIL_TEST_BROKEN names a file for the table of what was found.
func TestSetups(t *testing.T) {
	env := testenv.Need(t)
	if env.Backend != "GORAIL" {
		t.Skip("these tests are about GORAIL")
	}
	var mu sync.Mutex
	seen := map[string][2]string{} // first line, result
	t.Cleanup(func() { write(t, seen) })
	for _, row := range table() {
		t.Run(row.name, func(t *testing.T) {
			if testing.Short() && !row.quick {
				t.Skip("the long form tries it")
			}
			t.Parallel()
			line, result := "", "FAILED"
			defer func() {
				if t.Skipped() && result == "FAILED" {
					result = "skipped: this machine lacks something (go test -v says what)"
				}
				mu.Lock()
				defer mu.Unlock()
				seen[row.name] = [2]string{line, result}
			}()
			if !row.user && os.Geteuid() != 0 {
				result = "skipped: needs root"
				skip.OrFail(t, errors.New("needs root: "+row.made))
			}
			broken := row.first(row.try(newScene(t, env), false))
			line = broken.id + ": " + broken.text
			require.Equal(t, row.id, broken.id, broken.text)
			require.Contains(t, broken.text, row.says)
			assert.True(t, row.id == logs || broken.remedy != "", "a FAIL has a remedy")
			remedied := row.first(row.try(newScene(t, env), true))
			require.Empty(t, remedied.id, remedied.text)
			result = "passes with the remedy"
		})
	}
}

// write leaves the table of a run.
func write(t *testing.T, seen map[string][2]string) {
	file := os.Getenv("GORAIL_TEST_BROKEN")
	if file == "" {
		return
	}
	var b strings.Builder
	for _, row := range table() {
		got, ok := seen[row.name]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%s\n    made by     %s\n    first line  %s\n    remedy      %s\n    result      %s\n", row.name, row.made, got[0], row.remedy, got[1])
	}
	assert.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
}

var update = flag.Bool("update", false, "write the table of README.md")

// TestPage: README.md has the table.
func TestPage(t *testing.T) {
	const file, begin, end = "README.md", "<!-- set-ups: go test ./gorail/doctor/broken -run TestPage -update -->\n", "\n<!-- end of set-ups -->"
	var b strings.Builder
	b.WriteString("\n| set-up | made by | first FAIL, WARN, or log | its words | remedy |\n|---|---|---|---|---|\n")
	for _, row := range table() {
		id := "`" + row.id + "`"
		switch {
		case row.id == logs:
			id = "log"
		case row.warns:
			id += " (WARN)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", row.name, row.made, id, row.says, row.remedy)
	}
	docpage.Check(t, file, begin, end, b.String(), *update)
}

// TestTable: every row is complete, and no name appears twice.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, row := range table() {
		require.False(t, names[row.name], row.name)
		names[row.name] = true
		for _, text := range []string{row.name, row.made, row.id, row.says, row.remedy} {
			require.NotEmpty(t, text, row.name)
			require.NotContains(t, text, "|", row.name)
		}
		known := row.id == logs
		for _, r := range doctor.List {
			known = known || r.ID == row.id
		}
		require.True(t, known, "%s: no check is called %s", row.name, row.id)
	}
	require.GreaterOrEqual(t, len(names), 20)
}

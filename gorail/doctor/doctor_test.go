package doctor

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/test/docpage"
)

var update = flag.Bool("update", false, "write the golden files and the table of docs/doctor.md")

// TestMachines compares the reports of whole machines.
func TestMachines(t *testing.T) {
	for name, fails := range map[string]int{"p5-48xlarge": 0, "dgx-h100": 0, "slingshot": 0, "dgx-spark": 0, "server": 0, "half-container": 3} {
		t.Run(name, func(t *testing.T) {
			r := Run(load(t, "file "+name))
			var got bytes.Buffer
			require.NoError(t, r.Text(&got, Style{Hints: true}))
			golden(t, "testdata/"+name+".golden", got.Bytes())
			n := 0
			for _, c := range r.Checks {
				if c.Status == Fail {
					n++
					assert.NotEmpty(t, c.Remedy, c.ID)
				}
				assert.Equal(t, c.Status == Pass, c.Remedy == "", "%s: a remedy for what is not well, and for nothing else", c.ID)
			}
			require.Equal(t, fails, n, got.String())
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "go test ./gorail/doctor -update writes it anew")
}

// TestJSON: the fields of the schema, by name, with the values of the text.
func TestJSON(t *testing.T) {
	r := Run(load(t, "file half-container"))
	var got bytes.Buffer
	require.NoError(t, r.JSON(&got))
	var back struct {
		Version int
		Checks  []map[string]any
	}
	require.NoError(t, json.Unmarshal(got.Bytes(), &back))
	require.Equal(t, SchemaVersion, back.Version)
	require.Len(t, back.Checks, len(r.Checks))
	for i, c := range r.Checks {
		b := back.Checks[i]
		require.Equal(t, []any{c.ID, c.Area, string(c.Status), c.Text, c.Remedy}, []any{b["id"], b["area"], b["status"], b["text"], b["remedy"]})
	}
	require.True(t, r.Failed())
}

// TestPage: docs/doctor.md has the table of the code.
func TestPage(t *testing.T) {
	const file, begin, end = "../../docs/doctor.md", "<!-- checks: go test ./gorail/doctor -update -->\n", "\n<!-- end of checks -->"
	docpage.Check(t, file, begin, end, table(), *update)
}

// TestList: ids are unique, every row is complete, and areas are not mixed.
func TestList(t *testing.T) {
	ids, areas := map[string]bool{}, map[string]bool{}
	last := ""
	for _, r := range List {
		require.False(t, ids[r.ID], r.ID)
		ids[r.ID] = true
		for _, text := range []string{r.ID, r.Area, r.Looks, r.Fails, r.Remedy} {
			require.NotEmpty(t, text, r.ID)
		}
		if r.Area != last {
			require.False(t, areas[r.Area], "area %s twice", r.Area)
			areas[r.Area], last = true, r.Area
		}
	}
	require.Panics(t, func() { (&Report{}).Pass("nosuch", "") })
}

// table is the table of docs/doctor.md.
func table() string {
	var b strings.Builder
	b.WriteString("\n| id | looks at | FAIL means | remedy |\n|---|---|---|---|\n")
	area := ""
	for _, r := range List {
		if r.Area != area {
			area = r.Area
			fmt.Fprintf(&b, "| **%s** | | | |\n", area)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.ID, r.Looks, r.Fails, r.Remedy)
	}
	return b.String()
}

package page

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/study/result"
)

// hostile has text that would break out of each format.
const hostile = `<script>alert(1)</script>|"` + "\n,x"

func sample() *result.Result {
	return &result.Result{Version: result.Version, Study: "small", Title: "T " + hostile, Asked: "Why?", When: time.Unix(0, 0).UTC(), Command: "gorail study small",
		Machine: "m", Findings: []string{"found " + hostile}, Failed: []string{"failed"}, Ended: "interrupted", Methods: []string{"method"},
		Checks: []result.Check{{Status: "WARN", What: "quiet", Text: "busy", Remedy: "wait"}},
		Sections: []result.Section{{Title: "S", Text: "text",
			Tables: []result.Table{{Title: "Table", Keys: 1, Columns: result.Columns("size", "+rate"), Rows: [][]result.Cell{{result.Word(hostile), result.Num(12345.678)}, {result.Word("8 KiB"), {}}}}},
			Plots: []result.Plot{
				{Title: "P " + hostile, X: "x " + hostile, Y: "y", LogX: true, LogY: true, Bytes: true, Lines: []result.Line{{Name: "a", XY: [][2]float64{{64, 1}, {4096, 900}, {0, 1}}}, {Name: "limit", Of: "a", XY: [][2]float64{{64, 2}, {4096, 2}}, Dashed: true}}},
				{Title: "counts", X: "n", Y: "y", Lines: []result.Line{{Name: "a", XY: [][2]float64{{1, 0}, {2, 0}}}}},
				{Title: "no line", Lines: []result.Line{{Name: "one point", XY: [][2]float64{{1, 1}}}}},
			}}}}
}

// TestHTML: the page needs no script and no other file, its plots use its colours, and text stays text.
func TestHTML(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, HTML(&b, sample()))
	page := b.String()
	require.NotContains(t, page, "<script")
	require.Empty(t, regexp.MustCompile(`(?i)(src|href)="[^d]|url\(|@import`).FindAllString(page, -1))
	require.Equal(t, 2, strings.Count(page, "<svg"), "a plot without a line is left out")
	require.Contains(t, page, "stroke:#1B6CA8")
	require.NotContains(t, page, "stroke:#D1492C", "the limit has the colour of its line")
	require.Contains(t, page, "prefers-color-scheme:dark")
	for _, want := range []string{"12,346", "interrupted", "WARN", "method", "gorail study small", "&lt;script&gt;"} {
		require.Contains(t, page, want)
	}
}

// TestRoundTrip: Read returns what JSON wrote, and refuses what is none.
func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, JSON(&b, sample()))
	r, err := Read(b.Bytes())
	require.NoError(t, err)
	require.Equal(t, sample(), r)
	for text, says := range map[string]string{"{": "not a result", "{}": "names no study", `{"Study":"small","Version":99}`: "version 99"} {
		_, err := Read([]byte(text))
		require.ErrorContains(t, err, says)
	}
}

var update = flag.Bool("update", false, "write docs/example-study.html again")

const docs = "../../../docs/"

// mostExample bounds the example page: it is in the repository.
const mostExample = 100_000

// TestExample: the example page is what `gorail study show` makes of its JSON today. With -update the test writes it.
func TestExample(t *testing.T) {
	text, err := os.ReadFile(docs + "example-study.json")
	require.NoError(t, err)
	r, err := Read(text)
	require.NoError(t, err, "run the study of the command in it again")
	require.Empty(t, r.Ended)
	require.Empty(t, r.Failed)
	var b bytes.Buffer
	require.NoError(t, HTML(&b, r))
	require.Less(t, b.Len(), mostExample)
	if *update {
		require.NoError(t, os.WriteFile(docs+"example-study.html", b.Bytes(), 0o644))
	}
	kept, err := os.ReadFile(docs + "example-study.html")
	require.NoError(t, err)
	same := string(kept) == b.String()
	if runtime.GOARCH != "amd64" { // other processors round the last digit of a plot's coordinates elsewhere
		numbers := regexp.MustCompile(`[0-9.]+`)
		same = numbers.ReplaceAllString(string(kept), "") == numbers.ReplaceAllString(b.String(), "")
	}
	require.True(t, same, "docs/example-study.html is not of the present format: go test ./gorail/study/page -run TestExample -update")
}

package page

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
)

// hostile has text that would break out of each format.
const hostile = `<script>alert(1)</script>|"` + "\n,x"

func sample() *result.Result {
	return &result.Result{Version: result.Version, Study: "kv", Title: "T " + hostile, Asked: "Why?", When: time.Unix(0, 0).UTC(), Command: "gorail study kv",
		Machine: "m", Findings: []string{"found " + hostile}, Failed: []string{"failed"}, Ended: "interrupted", Methods: []string{"method"},
		Checks: []result.Check{{Status: "WARN", What: "quiet", Text: "busy", Remedy: "wait"}},
		Sections: []result.Section{{Title: "S", Text: "text",
			Tables: []result.Table{{Title: "Table", Keys: 1, Columns: []string{"size", "rate"}, Rows: [][]result.Cell{{result.Word(hostile), result.Num(12345.678)}, {result.Word("8 KiB"), {}}}}},
			Plots: []result.Plot{
				{Title: "P " + hostile, X: "x " + hostile, Y: "y", LogX: true, LogY: true, Bytes: true, Lines: []result.Line{{Name: "a", XY: [][2]float64{{64, 1}, {4096, 900}, {0, 1}}}, {Name: "limit", XY: [][2]float64{{64, 2}, {4096, 2}}, Dashed: true}}},
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
	require.Contains(t, page, "prefers-color-scheme:dark")
	for _, want := range []string{"12,346", "interrupted", "WARN", "method", "gorail study kv", "&lt;script&gt;"} {
		require.Contains(t, page, want)
	}
}

// TestJSON: nothing is lost.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, JSON(&b, sample()))
	r := &result.Result{}
	require.NoError(t, json.Unmarshal(b.Bytes(), r))
	require.Equal(t, sample(), r)
}

// TestTexts: Markdown keeps each row on its line.
func TestTexts(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Markdown(&b, sample()))
	require.Contains(t, b.String(), "| 8 KiB |  |")
	require.Contains(t, b.String(), "| size | rate |\n| --- | ---: |\n| <script>alert(1)</script>\\|\" ,x | 12,346 |\n")
}

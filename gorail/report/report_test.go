package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/measure"
)

// made is a run in which GORAIL takes half of UCX's time, and one point of UCX failed.
func made() *measure.Run {
	r := &measure.Run{Title: "Same host", Machine: "a machine", Command: "gorail bench", Repeats: 1, Subjects: []string{"GORAIL", "UCX"}, Limits: []string{"memcpy"}}
	for i := range 4 {
		p := measure.Point{Op: "WRITE", Block: 4096 << (2 * i), Batch: 1, Depth: 1, Threads: 1}
		for j, s := range []string{"GORAIL", "UCX", "memcpy"} {
			ns := uint64([]int{1000, 2000, 100}[j] * (i + 1))
			v := measure.Sample{Subject: s, Point: p, Done: 1, Posted: 2, CPU: [2]time.Duration{1, 2}, Wall: time.Duration(ns), Lat: measure.Times{Sum: ns, Max: ns, N: make([]uint64, measure.Buckets)}}
			v.Lat.N[100]++
			if i == 3 && s == "UCX" {
				v = measure.Sample{Subject: s, Point: p, Failed: "it died"}
			}
			r.Samples = append(r.Samples, v)
		}
	}
	r.Samples = append(r.Samples, measure.Sample{Subject: "UCX", Point: measure.Point{Op: "IDLE"}, Wall: time.Second, CPU: [2]time.Duration{time.Second, 0}})
	return r
}

func TestTables(t *testing.T) {
	tables := Tables(made())
	require.Len(t, tables, 2)
	w := tables[0]
	require.Equal(t, "WRITE", w.Title)
	require.Len(t, w.Rows, 12)
	require.Equal(t, "4 KiB", w.Rows[0][0])
	require.Equal(t, "4.10", w.Rows[0][2])
	require.Equal(t, "2.00 (2.00 .. 2.00)", w.Rows[0][12])
	require.Equal(t, []string{"0.00013", "0.00026"}, w.Rows[0][10:12], "nanoseconds for 8 KiB, a warm-up among them")
	require.Equal(t, []string{"256 KiB", "UCX", "it died"}, w.Rows[10])
	require.Equal(t, []string{"UCX", "100", "0"}, tables[1].Rows[0])
	var b bytes.Buffer
	Markdown(&b, w)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, l := range lines[2:] {
		require.Equal(t, strings.Count(lines[2], "|"), strings.Count(l, "|"), l)
	}
	require.NoError(t, Text(&b, made()))
}

// TestFolder: a report with every table, and its plots.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Folder(dir, []*measure.Run{made(), made()}))
	text, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), "#### WRITE\n"))
	plots, _ := filepath.Glob(filepath.Join(dir, "plots", "*.svg"))
	require.Len(t, plots, 4)
	for _, p := range plots {
		require.Contains(t, string(text), "(plots/"+filepath.Base(p)+")")
	}
}

func TestReplace(t *testing.T) {
	page := "# Mine\n\n" + Begin + "\nold\n" + End + "\n\nalso mine\n"
	got, err := Replace(page, "new\n")
	require.NoError(t, err)
	require.Equal(t, "# Mine\n\n"+Begin+"\n\nnew\n\n"+End+"\n\nalso mine\n", got)
	again, err := Replace(got, "new\n")
	require.NoError(t, err)
	require.Equal(t, got, again)
	for _, bad := range []string{"", Begin + "\n", End + "\n" + Begin + "\n", page + page} {
		_, err := Replace(bad, "new")
		require.Error(t, err)
	}
}

package report

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"gorail/gorail/measure"
	"gorail/gorail/result"
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

func TestPage(t *testing.T) {
	p := Page(made())
	require.Len(t, p.Sections, 2)
	s := p.Sections[0]
	require.Equal(t, "WRITE", s.Title)
	require.Len(t, s.Plots, 2)
	require.Len(t, s.Plots[0].Lines, 3)
	rows := words(s.Tables[0].Rows)
	require.Len(t, rows, 12)
	require.Equal(t, "4 KiB", rows[0][0])
	require.Equal(t, "4.10", rows[0][2])
	require.Equal(t, "2.00 (2.00 .. 2.00)", rows[0][12])
	require.Equal(t, []string{"0.00013", "0.00026"}, rows[0][10:12], "nanoseconds for 8 KiB, a warm-up among them")
	require.Equal(t, []string{"256 KiB", "UCX", "it died"}, rows[10])
	require.Equal(t, []string{"UCX", "100", "0"}, words(p.Sections[1].Tables[0].Rows)[0])
	var b strings.Builder
	require.NoError(t, Text(&b, made(), false))
	require.Contains(t, b.String(), "\n256 KiB UCX failed: it died\n")
	require.NotContains(t, b.String(), "incomplete")
}

// TestText: six columns fit 100 characters, limits have no ratio, rows of busy times are marked, and an incomplete run says so.
func TestText(t *testing.T) {
	r := made()
	r.Setup, r.Ended = strings.Repeat("word ", 50), "interrupted after 3 of 9 points"
	for i := range r.Samples {
		if r.Samples[i].Subject == "UCX" && r.Samples[i].Point.Block == 4096 {
			r.Samples[i].Busy = 0.34
		}
	}
	var six, wide strings.Builder
	require.NoError(t, Text(&six, r, false))
	require.NoError(t, Text(&wide, r, true))
	for line := range strings.Lines(six.String()) {
		require.LessOrEqual(t, len(line), 101, line)
	}
	require.Regexp(t, `transfer +backend +GB/s +us p50 +p99 +rate to UCX\n`, six.String())
	require.Regexp(t, `transfer .* a second .* p99.9 .* p99 to UCX\n`, wide.String())
	require.Regexp(t, `4 KiB +GORAIL +4.10 .* 2.00 \(2.00 \.\. 2.00\)`, six.String())
	require.Regexp(t, `4 KiB +UCX\* +2.05 `, six.String())
	require.Regexp(t, `(?m)^ +4 KiB +memcpy +41.0 +[0-9.]+ +[0-9.]+ *$`, six.String())
	require.Contains(t, six.String(), "* other programs use 34 % of the cores")
	require.Contains(t, six.String(), "\nincomplete: interrupted after 3 of 9 points\n")
	for i := range r.Samples {
		r.Samples[i].Subject = strings.Replace(r.Samples[i].Subject, "UCX", "UCX+UCX_TLS=tcp,self,and+others=more", 1)
	}
	r.Subjects[1] = "UCX+UCX_TLS=tcp,self,and+others=more"
	six.Reset()
	require.NoError(t, Text(&six, r, false))
	require.Contains(t, six.String(), " UCX+UCX_TLS=tcp,self,and+o…* ")
	for line := range strings.Lines(six.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 101, line)
	}
	require.NotContains(t, six.String(), "medians", "one repeat")
	r.Subjects, r.Repeats = r.Subjects[:1], 3
	six.Reset()
	require.NoError(t, Text(&six, r, false))
	require.Regexp(t, `p99 +a second\n`, six.String())
	require.Contains(t, six.String(), "\nmedians of 3 repeats\n")
}

func words(rows [][]result.Cell) (out [][]string) {
	for _, r := range rows {
		var line []string
		for _, c := range r {
			line = append(line, c.String())
		}
		out = append(out, line)
	}
	return out
}

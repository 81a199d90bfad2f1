package result

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func sample(rate, lat float64, rows ...string) *Result {
	t := Table{Title: "t", Keys: 1, Columns: Columns("size", "+a second", "-us", "share")}
	for _, r := range rows {
		t.Rows = append(t.Rows, []Cell{Word(r), Num(rate), Num(lat), Num(1)})
	}
	return &Result{Study: "small", When: time.Unix(0, 0), Machine: "m", Sections: []Section{{Title: "s", Tables: []Table{t}}}}
}

// TestDiff: more is better in one column and less in another. Rows are matched by their keys; a row of one result alone is counted.
func TestDiff(t *testing.T) {
	d, err := Diff(sample(100, 10, "4 KiB", "8 KiB"), sample(200, 20, "8 KiB", "16 KiB"))
	require.NoError(t, err)
	require.Equal(t, []string{"1 numbers are better, 1 worse, 1 the same within 5 %.", "2 rows are in one run alone."}, d.Findings)
	rows := d.Sections[0].Tables[0].Rows
	require.Len(t, rows, 3)
	require.Equal(t, []string{"8 KiB", "a second", "100", "200", "2", "better"}, words(rows[0]))
	require.Equal(t, []string{"8 KiB", "us", "10", "20", "2", "worse"}, words(rows[1]))
	require.Equal(t, "same", rows[2][5].Text)

	d, err = Diff(sample(100, 10, "4 KiB"), sample(104, 10, "4 KiB"))
	require.NoError(t, err)
	require.Contains(t, d.Findings[0], "0 numbers are better, 0 worse, 3 the same")

	other := sample(1, 1, "4 KiB")
	other.Study = "rails"
	_, err = Diff(sample(1, 1), other)
	require.ErrorContains(t, err, "compare results of one study")
}

func words(row []Cell) (out []string) {
	for _, c := range row {
		out = append(out, c.String())
	}
	return out
}

// TestCells: what is no number is an empty cell.
func TestCells(t *testing.T) {
	require.Empty(t, Num(math.NaN()).String())
	require.Empty(t, Num(math.Inf(1)).String())
	require.Equal(t, "-1.50", Num(-1.5).String())
	require.Equal(t, "1.95 x", Ratio(1.95, 1))
	require.Equal(t, "as much as", Ratio(1.03, 1))
	require.Equal(t, "not comparable with", Ratio(1, 0))
}

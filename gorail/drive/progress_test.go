package drive

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/measure"
)

// TestProgress: a line at once and then every few seconds, with what is left.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := NewProgress(&out)
		p.Whole = true
		p.Expect(100)
		for range 10 {
			p.Step("x")
			time.Sleep(2 * time.Second)
		}
		require.Equal(t, "1 of 100: x\n4 of 100, about 3 minutes left: x\n7 of 100, about 3 minutes left: x\n10 of 100, about 3 minutes left: x\n", out.String())
	})
	require.Equal(t, "about 1 s", About(0))
	require.Equal(t, "about 99 s", About(99*time.Second))
	require.Equal(t, "about 2 minutes", About(2*time.Minute))
}

// TestEstimate: backends start processes, limits do not count much, and a number of transfers has no time.
func TestEstimate(t *testing.T) {
	c := Config{Subjects: []measure.Subject{{Title: "GORAIL", Backend: "GORAIL"}, {Title: "memcpy"}}, Repeats: 3, Pace: measure.Pace{Time: time.Second},
		Points: []measure.Point{{Op: "WRITE", Block: 4096, Batch: 1, Depth: 1, Threads: 1}, {Op: "READ", Block: 4096, Batch: 1, Depth: 1, Threads: 1}}}
	require.Equal(t, 17, int(c.Estimate().Seconds()+0.5))
	c.Pace.Count = 10
	require.Zero(t, c.Estimate())
}

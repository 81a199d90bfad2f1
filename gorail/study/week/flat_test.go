package week

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// curveOf makes samples: growth over the run, beside noise and a beginning that fills caches.
func curveOf(n int, growth, noise float64, r *rand.Rand) (y []float64) {
	for i := range n {
		v := 100 + growth*float64(i)/float64(n) + noise*r.NormFloat64()
		if i < n/4 {
			v -= 30
		}
		y = append(y, v)
	}
	return y
}

// TestTrend: what grows by twice the limit is never flat, and what does not grow is. The bound holds in 19 of 20 cases, also if samples resemble
// their neighbours.
func TestTrend(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 8))
	const limit = 12
	within := 0
	for range 1000 {
		require.Equal(t, Flat, trendOf(curveOf(24, 0, 1, r)).verdict(limit))
		require.NotEqual(t, Flat, trendOf(curveOf(24, 2*limit, 1, r)).verdict(limit))
		require.Equal(t, Grows, trendOf(curveOf(200, 2*limit, 1, r)).verdict(limit))
		if tr := trendOf(curveOf(60, 7, 2, r)); tr.slope-tr.bound < 7 && 7 < tr.slope+tr.bound {
			within++
		}
	}
	require.Greater(t, within, 920)
	require.Equal(t, Flat, trendOf(make([]float64, 24)).verdict(0), "nothing at all")
	require.Equal(t, Unclear, trendOf([]float64{1, 1, 1, 1}).verdict(1), "too few samples")
	require.Equal(t, Unclear, trendOf(curveOf(24, 0, 200, r)).verdict(limit), "noise hides all")

	within = 0
	for range 1000 { // a random walk that returns: neighbours share 0.7
		var y []float64
		v := 0.0
		for range 200 {
			v = 0.7*v + r.NormFloat64()
			y = append(y, v)
		}
		if tr := trendOf(y); tr.slope-tr.bound < 0 && 0 < tr.slope+tr.bound {
			within++
		}
	}
	require.Greater(t, within, 900)
}

// TestPlan: rounds of the full, the quick and the smallest form do all that they say.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		scale    int
		smallest bool
		all      work
		rounds   int
	}{
		{1, false, aWeek, 200},
		{20, false, work{500_000, 5_000, 500, 50}, 50},
		{500, true, work{20_016, 480, 360, 48}, 24},
	} {
		x := &run{}
		x.plan(c.scale, c.smallest)
		require.Equal(t, c.rounds, x.rounds)
		require.Equal(t, c.all, x.all)
	}
}

package small

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/measure"
	"gorail/gorail/study/env"
)

// sampled is a run with samples of given rates, each transfer taking 1/rate.
func sampled(rates map[string]map[measure.Point]float64) *view {
	run := &measure.Run{Subjects: []string{"GORAIL", "UCX"}}
	for _, subject := range run.Subjects {
		for _, p := range points(&env.Env{Effort: env.Smallest}) {
			n, ok := rates[subject][p]
			if !ok {
				continue
			}
			s := measure.Sample{Subject: subject, Point: p, Done: uint64(n), Posted: uint64(n), Wall: time.Second}
			s.Lat.N = make([]uint64, measure.Buckets)
			s.Lat.N[50] = uint64(n)
			s.Lat.Sum, s.Lat.Max = 50*uint64(n), 50
			run.Samples = append(run.Samples, s)
		}
	}
	return &view{run}
}

// TestSections: each section has the rows of its points, and percentiles only where there are enough transfers.
func TestSections(t *testing.T) {
	rates := map[string]map[measure.Point]float64{"GORAIL": {}}
	for _, p := range points(&env.Env{Effort: env.Smallest}) {
		rates["GORAIL"][p] = 200
	}
	v := sampled(rates)
	row := v.latency().Tables[0].Rows[0]
	require.NotEmpty(t, row[3].String(), "p50")
	require.NotEmpty(t, row[4].String(), "p99")
	require.Empty(t, row[5].String(), "p99.9 of 200 transfers")
	require.Len(t, v.flight().Tables[0].Rows, 2)
	require.Len(t, v.load("Agents", "agents", measure.Point.Engines, func(p measure.Point) bool { return p.Threads == p.Engines() }).Tables[0].Rows, 2)
	require.Empty(t, sampled(nil).latency().Tables)
}

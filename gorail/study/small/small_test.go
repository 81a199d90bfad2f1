package small

import (
	"strings"
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
	return &view{run, map[string]string{"GORAIL": "GORAIL", "UCX": "UCX"}}
}

// TestFindings: more threads that give nothing are named, and so is a backend that gives less. Without samples there are no words.
func TestFindings(t *testing.T) {
	all := points(&env.Env{Effort: env.Smallest})
	rates := map[string]map[measure.Point]float64{"GORAIL": {}, "UCX": {}}
	for _, p := range all {
		rates["GORAIL"][p] = 1000
		rates["UCX"][p] = 250 * float64(p.Threads)
	}
	text := strings.Join(sampled(rates).findings(), "\n")
	require.Contains(t, text, "GORAIL, one thread: 1,000 WRITEs of 64 B a second (median 0.05 us")
	require.Contains(t, text, "64 B: GORAIL moves 4.00 x UCX by rate (4.00 .. 4.00 in single repeats)")
	require.Contains(t, text, "GORAIL: more threads give no more small messages a second here")
	require.Contains(t, text, "UCX: most small messages a second with 2 threads and 1 agents: 500, 2.00 x one thread.")
	require.Empty(t, sampled(nil).findings())
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

// TestCosts: counts come out for each transfer, objects of Go only of many transfers, and the backend's library has a row also if it
// allocates nothing. Without counts there are no sections and no words.
func TestCosts(t *testing.T) {
	rates := map[string]map[measure.Point]float64{"GORAIL": {}, "UCX": {}}
	for _, p := range points(&env.Env{Effort: env.Smallest}) {
		rates["GORAIL"][p], rates["UCX"][p] = 20_000, 20_000
	}
	v := sampled(rates)
	require.Empty(t, v.costs())
	require.Empty(t, v.spent())
	for i := range v.Samples {
		s := &v.Samples[i]
		ini, tgt := measure.Cost{N: 20_000, Traced: 100, Runtimes: 1, GoN: 20_000, Objects: 10}, measure.Cost{N: 20_000, Runtimes: 1, GoN: 9000, Objects: 9000}
		if s.Subject == "UCX" {
			ini = measure.Cost{N: 20_000, Traced: 100, Callers: map[string]uint64{"": 7, "libplugin_UCX.so": 200, "libserdes.so": 300}}
			ini.Allocs, ini.Contended = 100_000, uint64(20_000*(s.Point.Threads-1))
			tgt = measure.Cost{N: 20_000}
		}
		tgt.Allocs = 60_000
		s.Costs = &[2]measure.Cost{ini, tgt}
	}
	sections := v.costs()
	require.Len(t, sections, 2)
	rows := sections[0].Tables[0].Rows
	for i, want := range []string{"64 B", "1", "1", "GORAIL", "0", "3", "0.0005", "", "0", "0"} {
		require.Equal(t, want, rows[0][i].String(), i)
	}
	for i, want := range []string{"64 B", "1", "1", "UCX", "5", "3", "", ""} {
		require.Equal(t, want, rows[1][i].String(), i)
	}
	callers := sections[0].Tables[1].Rows
	for i, want := range [][2]string{{"libplugin_GORAIL.so", "0"}, {"libplugin_UCX.so", "2"}, {"libserdes.so", "3"}} {
		require.Equal(t, want, [2]string{callers[i][4].String(), callers[i][5].String()})
	}
	text := strings.Join(v.spent(), "\n")
	require.Contains(t, text, "GORAIL, a WRITE of 64 B: 0 allocations in C at the initiator (20,000 WRITEs were counted), 0 of them by the backend's library; 3.00 at the target; less than 0.001 objects in Go at the initiator. 2 threads of one agent found a lock held by another thread 0 times for a WRITE.")
	require.Contains(t, text, "UCX, a WRITE of 64 B: 5.00 allocations in C at the initiator (20,000 WRITEs were counted), 2.00 of them by the backend's library; 3.00 at the target. 2 threads of one agent found a lock held by another thread 1.00 times for a WRITE.")
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
)

// BenchmarkFailover lets one of two 1 Gbit/s rails fail at random moments, and reports the distribution of the gaps:
//
//	go test ./test/e2e -run NONE -bench Failover -benchtime 1000x -timeout 0
//
// GORAIL_FAILURES_JSON names a file for all of them. "Gap" is the longest time in which the other rail carried nothing.
func BenchmarkFailover(b *testing.B) {
	f := newFailovers(b, uint64(time.Now().UnixNano()))
	b.ResetTimer()
	var all []failure
	for i := range b.N {
		op := []nixlapi.Op{nixlapi.Write, nixlapi.Read}[i/3%2]
		all = append(all, f.one([]string{railDown, railError, railSilent}[i%3], op))
		if file := os.Getenv("GORAIL_FAILURES_JSON"); file != "" {
			text, err := json.MarshalIndent(all, "", " ")
			require.NoError(b, err)
			require.NoError(b, os.WriteFile(file, text, 0o644))
		}
	}
	require.NoError(b, f.p.ini.Exit())
	require.NoError(b, f.p.tgt.Exit())
	fmt.Print(failureTable(all))
	b.ReportMetric(0, "ns/op")
}

// failureTable has a line for each way to fail and each operation: for all failures, and for those at moments when the machine had little
// else to do.
func failureTable(all []failure) string {
	const quiet = 5 // threads that can run; the benchmark has three to five
	limits := map[string]time.Duration{railDown: 50 * time.Millisecond, railError: 50 * time.Millisecond, railSilent: time.Second}
	table := "\n| failure | op | when | failures | gap p50 ms | p90 | p99 | max | above the limit | no failure: p50 | p99 |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
	for _, kind := range []string{railDown, railError, railSilent} {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			for _, when := range []string{"always", "quiet"} {
				var gaps, normal []time.Duration
				over := 0
				for _, r := range all {
					if r.Kind == kind && r.Op == op.String() && (when == "always" || r.Runnable <= quiet) {
						gaps, normal = append(gaps, r.Gap), append(normal, r.Before)
						if r.Gap > limits[kind] {
							over++
						}
					}
				}
				if len(gaps) > 0 {
					table += fmt.Sprintf("| %s | %s | %s | %d | %s | %s | %s | %s | %d of %v | %s | %s |\n", kind, op, when, len(gaps),
						at(gaps, 50), at(gaps, 90), at(gaps, 99), at(gaps, 100), over, limits[kind], at(normal, 50), at(normal, 99))
				}
			}
		}
	}
	return table
}

// at is a percentile in milliseconds.
func at(list []time.Duration, percent int) string {
	slices.Sort(list)
	return fmt.Sprintf("%.1f", float64(list[min(len(list)-1, len(list)*percent/100)])/1e6)
}

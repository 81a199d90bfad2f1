package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkFailover lets one of two 1 Gbit/s rails fail at random moments, and reports the distribution of the gaps:
//
//	go test ./test/e2e -run NONE -bench Failover -benchtime 1000x -timeout 0
//
// GORAIL_FAILURES_JSON names a file for all of them. "Gap" is the longest time in which the other rail carried nothing.
func BenchmarkFailover(b *testing.B) {
	f := newFailovers(b, uint64(time.Now().UnixNano()), 128<<20)
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

// BenchmarkFailoverFabric lets the n-th operation of one of two imitated devices fail, n at random. Peers share an endpoint there, which is
// drained and not fenced: the transfer of that operation ends in an error, and later ones go on.
//
//	go test ./test/e2e -run NONE -bench FailoverFabric -benchtime 20x
//
// "ms-error" is the time of the transfer that fails, "ms-next" from its error to the success of the next one, "ms-normal" the time of
// a transfer without a failure. All are medians, "ms-most" is the longest sum of the first two.
func BenchmarkFailoverFabric(b *testing.B) {
	const size = 1 << 20
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			b.Run(kind+"/"+op.String(), func(b *testing.B) {
				var failed, next, both, normal []time.Duration
				for i := range b.N {
					p, _ := onFabric(b, kind, []string{"rails=2", fmt.Sprint("fail_at=", 100+rand.IntN(400)), fmt.Sprint("seed=", i+1)})
					mine, theirs := p.buffers(size)
					src, dst := mine, theirs
					if op == nixlapi.Read {
						src, dst = theirs, mine
					}
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
					timed := func() (nixlapi.Status, time.Duration) {
						began := time.Now()
						r := x.Loop(worker.LoopArgs{N: 1, Timeout: limit})
						return r.Status, time.Since(began)
					}
					for {
						s, took := timed()
						if s == nixlapi.Success {
							normal = append(normal, took)
							continue
						}
						require.NotEqual(b, nixlapi.InProgress, s)
						src.Fill(uint64(i))
						s, after := timed()
						require.Equal(b, nixlapi.Success, s, p.ini.Output())
						dst.Want(uint64(i))
						failed, next, both = append(failed, took), append(next, after), append(both, took+after)
						break
					}
					require.NoError(b, p.ini.Exit())
					require.NoError(b, p.tgt.Exit())
				}
				for name, list := range map[string][]time.Duration{"ms-error": failed, "ms-next": next, "ms-normal": normal} {
					slices.Sort(list)
					b.ReportMetric(float64(list[len(list)/2])/1e6, name)
				}
				b.ReportMetric(float64(slices.Max(both))/1e6, "ms-most")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/failover"
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
	var all []failover.Failure
	for i := range b.N {
		all = append(all, f.One(failover.Kinds[i%3], failover.Ops[i/3%2]))
		require.NoError(b, failover.Save(os.Getenv("GORAIL_FAILURES_JSON"), all))
	}
	require.NoError(b, f.Ini.Exit())
	require.NoError(b, f.Tgt.Exit())
	const quiet = 5 // threads that can run; the benchmark has three to five
	fmt.Print(failover.Table(all, quiet))
	b.ReportMetric(0, "ns/op")
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

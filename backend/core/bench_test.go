package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider/fake"
)

// Measures the cost of the core itself: the fake fabric only copies 64 bytes a work request.
func BenchmarkWorkRequests(b *testing.B) {
	const n = 2000
	caps := fake.TCPCaps()
	caps.IOVLimit = 1
	from, to := ends(b, caps, nil)
	x := from.xfer(to, core.Write, n, 64)
	for b.Loop() {
		from.post(x)
		for from.core.Check(x.Pointer(), uint64(n)<<32|64) != 0 {
		}
	}
	require.GreaterOrEqual(b, from.core.Counters()["work_requests"], uint64(n))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/request")
}

// Small transfers with notifications, 16 at a time: posts, completions, messages in both directions, credits.
func BenchmarkNotified(b *testing.B) {
	const n = 16 // within the credits
	for name, caps := range map[string]fake.Caps{"ordered": fake.TCPCaps(), "unordered": fake.EFACaps()} {
		b.Run(name, func(b *testing.B) {
			from, to := ends(b, caps, nil)
			from.core.Stop()
			to.core.Stop()
			xs := make([]core.Xfer, n)
			for i := range xs {
				xs[i] = from.xfer(to, core.Write, 1, 64)
			}
			for b.Loop() {
				for _, x := range xs {
					from.post(x, "done")
				}
				got := 0
				for _, x := range xs {
					for from.core.Check(x.Pointer(), 1<<32|64) != 0 {
						got += len(to.core.TakeNotifs())
					}
				}
				for got < n {
					got += len(to.core.TakeNotifs())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/transfer")
		})
	}
}

package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider/fake"
)

// What the core itself costs: the fake fabric copies 64 bytes a work request and nothing else.
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

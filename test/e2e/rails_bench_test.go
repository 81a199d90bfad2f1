package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkRails transfers 16 MiB over all of several shaped rails, and over the first rail alone:
//
//	go test ./test/e2e -run NONE -bench Rails -benchtime 5x
//
// With GORAIL_TEST_BACKEND=UCX it measures the wheel's UCX with as many rails.
func BenchmarkRails(b *testing.B) {
	const size = 16 << 20
	for _, mbit := range [][]uint64{{1000, 1000}, {1000, 500}, {250, 250, 250, 250}} {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			b.Run(fmt.Sprintf("%v/%s", mbit, op), func(b *testing.B) {
				var rate [2]float64
				for i, devices := range []string{"rail0", "rail*"} {
					ha, hb := rails(b, mbit...)
					p := benchOn(b, ha, hb, devices, len(mbit))
					mine, theirs := p.buffers(size)
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
					x.Do(limit)
					x.Do(limit)
					from := map[nixlapi.Op]*host{nixlapi.Write: ha, nixlapi.Read: hb}[op]
					var before, sent []uint64
					for k := range mbit {
						before = append(before, from.sent(fmt.Sprint("rail", k)))
					}
					began := time.Now()
					for range b.N {
						x.Do(limit)
					}
					rate[i] = float64(b.N) * size / time.Since(began).Seconds() / 1e6
					var sum uint64
					for k := range mbit {
						n := from.sent(fmt.Sprint("rail", k)) - before[k]
						sent, sum = append(sent, n), sum+n
					}
					for k, n := range sent {
						if i == 1 {
							b.ReportMetric(100*float64(n)/float64(sum), fmt.Sprintf("%%rail%d", k))
						}
					}
					require.NoError(b, p.ini.Exit())
					require.NoError(b, p.tgt.Exit())
				}
				b.ReportMetric(rate[0], "MB/s-one")
				b.ReportMetric(rate[1], "MB/s-all")
				b.ReportMetric(rate[1]/rate[0], "x-one")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func benchOn(b *testing.B, ha, hb *host, devices string, n int) *pairOf {
	if testenv.Need(b).Backend == "GORAIL" {
		return onRails(b, ha, hb, "devices", devices)
	}
	names := []string{"rail0"}
	for i := 1; i < n && devices != "rail0"; i++ {
		names = append(names, fmt.Sprint("rail", i))
	}
	b.Setenv("UCX_TLS", "tcp")
	b.Setenv("UCX_NET_DEVICES", strings.Join(names, ","))
	for _, v := range []string{"UCX_MAX_RNDV_RAILS", "UCX_MAX_RNDV_LANES", "UCX_MAX_EAGER_RAILS", "UCX_MAX_EAGER_LANES"} {
		b.Setenv(v, fmt.Sprint(len(names)))
	}
	return onRails(b, ha, hb)
}

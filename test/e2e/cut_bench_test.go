package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkRailCut takes one of two 1 Gbit/s rails down in the middle of a 1 GiB transfer, and then up again:
//
//	go test ./test/e2e -run NONE -bench RailCut -benchtime 1x
//
// "s-extra" is the time of the rest of the transfer, less the time that one rail needs for those bytes. "s-back" is the
// time from the rail's link up to its first 8 MiB.
func BenchmarkRailCut(b *testing.B) {
	const size, mbit, name = 1 << 30, 1000, "rail1"
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		b.Run(op.String(), func(b *testing.B) {
			ha, hb := rails(b, mbit, mbit)
			p := onRails(b, ha, hb)
			mine, theirs := p.buffers(size)
			from, src, dst := ha, mine, theirs
			if op == nixlapi.Read {
				from, src, dst = hb, theirs, mine
			}
			warm := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.Span(0, 64<<20), Remote: theirs.Span(0, 64<<20), Peer: "bob"})
			x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
			warm.Do(limit)
			var extra, back time.Duration
			for i := range b.N {
				src.Fill(seedC + uint64(i))
				before := from.sent("rail0") + from.sent(name)
				moved := func() uint64 { return from.sent("rail0") + from.sent(name) - before }
				require.False(b, x.Post().Failed())
				require.True(b, worker.Eventually(limit, func() bool { return moved() > size/2 }))
				left := size - min(moved(), size)
				hb.cut(name)
				began := time.Now()
				require.Equal(b, nixlapi.Success, x.Wait(long))
				extra += time.Since(began) - time.Duration(float64(left)*8/mbit/1e6*float64(time.Second))
				dst.Want(seedC + uint64(i))

				hb.restore(name)
				require.True(b, worker.Eventually(limit, func() bool { return ha.carries(name) && hb.carries(name) }))
				began = time.Now()
				require.True(b, worker.Eventually(limit, func() bool {
					was := from.sent(name)
					warm.Do(limit)
					return from.sent(name)-was > 8<<20
				}), "the rail that is up again carries nothing")
				back += time.Since(began)
			}
			b.ReportMetric(extra.Seconds()/float64(b.N), "s-extra")
			b.ReportMetric(back.Seconds()/float64(b.N), "s-back")
			b.ReportMetric(0, "ns/op")
			require.NoError(b, p.ini.Exit())
			require.NoError(b, p.tgt.Exit())
		})
	}
}

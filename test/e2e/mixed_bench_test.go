package e2e

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkMixed has one WRITE of 4 KiB in flight, alone and beside eight WRITEs of 64 MiB to the same peer, which are posted
// again when they have ended. One thread of the application does all of it. "own" is the provider of GORAIL_PROVIDER, by default tcp:
//
//	go test ./test/e2e -run NONE -bench Mixed -benchtime 10x
//
// Each turn measures alone, then beside. Figures are medians of the turns' percentiles, and of the turns' ratios.
func BenchmarkMixed(b *testing.B) {
	b.Run("own", func(b *testing.B) { mixed(b, pair(b)) })
	b.Run("sm", func(b *testing.B) { mixed(b, pair(b, params("provider", "sm"))) })
	b.Run("tcp,two-rails", func(b *testing.B) {
		ha, hb := newHost(b), newHost(b)
		for i, name := range []string{"fast0", "slow0"} {
			addr := func(last byte) *net.IPNet {
				return &net.IPNet{IP: net.IPv4(10, 77, byte(i), last), Mask: net.CIDRMask(24, 32)}
			}
			ha.wire(hb, name, addr(1), addr(2))
			ha.reach(hb, addr(2).IP)
		}
		mixed(b, onRails(b, ha, hb))
	})
}

func mixed(b *testing.B, p *pairOf) {
	const bulk, small, large = 64 << 20, 4 << 10, 8
	mine, theirs := p.buffers(large * bulk)
	sm, st := p.ini.Buffer(small, seedA), p.tgt.Buffer(small, seedB)
	p.ini.Learn(p.tgt)
	var big [large]*worker.Xfer
	for i := range uint64(large) {
		big[i] = p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*bulk, bulk), Remote: theirs.Span(i*bulk, bulk), Peer: "bob"})
		big[i].Do(limit)
	}
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: sm.All(), Remote: st.All(), Peer: "bob"})
	lat := func(n int) []int64 { return x.Loop(worker.LoopArgs{N: n, Timeout: limit, Times: true}).Lat }
	of := func(all []int64, percent int) float64 {
		slices.Sort(all)
		return float64(all[len(all)*percent/100]) / 1e3
	}
	lat(2000)
	figures := map[string][]float64{}
	note := func(name string, v float64) { figures[name] = append(figures[name], v) }
	for range b.N {
		alone := lat(2000)
		free := big[0].Loop(worker.LoopArgs{N: 20, Timeout: limit, Beside: []int{big[1].ID()}}).Wall
		for _, g := range big {
			g.Post()
		}
		began, ended := time.Now(), 0
		var beside, first []int64
		for time.Since(began) < time.Second {
			more := lat(100)
			first, beside = append(first, more[0]), append(beside, more[1:]...)
			for _, g := range big {
				if g.Status() != nixlapi.InProgress {
					ended++
					g.Post()
				}
			}
		}
		took := time.Since(began)
		for _, g := range big {
			g.Wait(limit)
		}
		for _, percent := range []int{50, 99} {
			name := fmt.Sprint("us-p", percent)
			note(name+"-alone", of(alone, percent))
			note(name+"-beside", of(beside, percent))
			note(name+"-first", of(first, percent))
			note(fmt.Sprint("x-p", percent), of(beside, percent)/of(alone, percent))
		}
		note("GB/s-alone", 20*bulk/free.Seconds()/1e9)
		note("GB/s-beside", float64(ended)*bulk/took.Seconds()/1e9)
	}
	for name, list := range figures {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name)
	}
	b.ReportMetric(0, "ns/op")
	require.NoError(b, p.ini.Exit())
}

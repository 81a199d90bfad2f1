package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestSlices: memory is registered in slices of 1 MiB, on both sides or on one. Transfers of the whole buffer are right,
// and so are transfers of blocks that cross slice boundaries. They are right after a deregistration and a new
// registration, too.
func TestSlices(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, most := range [][2]string{{"1MiB", "1MiB"}, {"1MiB", "0"}, {"0", "1MiB"}} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			p := &pairOf{ini: start(t, "alice", params("mr_max", most[0])), tgt: start(t, "bob", params("mr_max", most[1]))}
			p.tgt.Polling(true)
			la, lb := scattered(77, 700_000, 100, 12, 1), scattered(5, 700_000, 4096, 12, 2)
			a, b := p.ini.Buffer(la.End()+9, seedA), p.tgt.Buffer(lb.End()+11, seedB)
			p.ini.Learn(p.tgt)
			for round := range 2 {
				for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
					a.Fill(seedA)
					b.Fill(seedB)
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("n")})
					x.Do(limit)
					require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
					want(op, a, b, la, lb)
					require.NoError(t, x.Release())
				}
				if round == 0 {
					require.NoError(t, p.tgt.Deregister(b.All()))
					require.NoError(t, p.tgt.Register(b.All()))
				}
			}
			size := min(a.Size, b.Size)
			a.Fill(seedA)
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, size), Remote: b.Span(0, size), Peer: "bob"}).Do(limit)
			require.EqualValues(t, -1, b.Diff(0, size, seedA, 0))
		})
	}
}

// TestLinks: qps_per_rail sets the number of links of each rail. If the sides have different numbers, the smaller one
// counts. WRITEs and READs of whole buffers, WRITEs of small blocks and notifications in order work.
func TestLinks(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, n := range [][3]int{{2, 2, 2}, {2, 1, 1}, {1, 2, 1}} {
		t.Run(fmt.Sprint(n[:2]), func(t *testing.T) {
			many := func(n int) option { return params("qps_per_rail", fmt.Sprint(n), "log", "info") }
			p := &pairOf{ini: start(t, "alice", many(n[0])), tgt: start(t, "bob", many(n[1]))}
			p.tgt.Polling(true)
			a, b := p.buffers(16 << 20)
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				a.Fill(seedA)
				b.Fill(seedB)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				for i := range 20 {
					require.NoError(t, p.ini.GenNotif("bob", fmt.Append(nil, i)))
				}
				x.Do(limit)
				want(op, a, b, worker.Span(0, a.Size), worker.Span(0, b.Size))
				for i, got := range p.tgt.WaitNotifs(20, limit) {
					require.Equal(t, fmt.Sprint(i), string(got.Msg))
				}
				require.NoError(t, x.Release())
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				size := rnd.Uint64N(128 << 10)
				from, to := rnd.Uint64N(a.Size-size), rnd.Uint64N(a.Size-size)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(from, size), Remote: b.Span(to, size), Peer: "bob"})
				x.Do(limit)
				require.EqualValues(t, -1, b.Diff(to, size, seedB, from), "WRITE of %d bytes (both buffers have seedB since the READ)", size)
				require.NoError(t, x.Release())
			}
			line := says(t, p.ini.Worker, "peer connected", "session=initiator")
			_, used, _ := strings.Cut(line, " rails=")
			used, _, _ = strings.Cut(used, " ")
			require.Contains(t, line, fmt.Sprintf(" links=%d ", n[2]*(1+strings.Count(used, ","))), "%d links for each rail", n[2])
		})
	}
}

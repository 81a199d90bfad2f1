package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// scattered lays out n blocks with a gap after each. The agent merges no blocks that have gaps between them.
func scattered(off, block, gap uint64, n int, shuffle uint64) worker.Layout {
	return worker.Layout{Off: off, Len: block, Stride: block + gap, Count: n, Shuffle: shuffle}
}

// TestScattered transfers lists of blocks. Each side has its own order.
func TestScattered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n     int
		block uint64
	}{{1, 777}, {1000, 8192}, {1000, 33}, {100_000, 256}} {
		t.Run(fmt.Sprintf("%dx%d", c.n, c.block), func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				p := pair(t)
				la, lb := scattered(5, c.block, 64, c.n, 1), scattered(3, c.block, 40, c.n, 2)
				a, b := p.ini.Buffer(la.End()+9, seedA), p.tgt.Buffer(lb.End()+11, seedB)
				p.ini.Learn(p.tgt)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("n")})
				x.Do(long)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				want(op, a, b, la, lb)
				require.NoError(t, x.Release())
			})
		})
	}
}

// TestPrepared makes transfers of indices into prepared lists, with and without merging.
func TestPrepared(t *testing.T) {
	t.Parallel()
	const n = 512
	for _, noMerge := range []bool{false, true} {
		t.Run(fmt.Sprintf("noMerge=%v", noMerge), func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				p := pair(t)
				dense := scattered(0, 4096, 0, n, 0)
				a, b := p.buffers(dense.End())
				l, r := p.ini.Prep("", a.At(dense)), p.ini.Prep("bob", b.At(dense))
				// First every second block, then all blocks.
				var idx []int32
				for i := int32(0); i < n; i += 2 {
					idx = append(idx, i)
				}
				spec := worker.XferSpec{Op: op, Notif: []byte("i"), NoMerge: noMerge}
				x := p.ini.MakeXfer(spec, l, idx, r, idx)
				x.Do(limit)
				half := scattered(0, 4096, 4096, n/2, 0)
				want(op, a, b, half, half)
				run := idx[:0]
				for i := range int32(n) {
					run = append(run, i)
				}
				y := p.ini.MakeXfer(spec, l, run, r, run)
				y.Do(limit)
				require.Len(t, p.tgt.WaitNotifs(2, limit), 2)
				want(op, a, b, dense, dense)
				require.NoError(t, x.Release())
				require.NoError(t, y.Release())
				require.NoError(t, l.Release())
				require.NoError(t, r.Release())
			})
		})
	}
}

// TestPreparedHuge prepares 2,097,152 blocks and transfers 4,096 of them.
func TestPreparedHuge(t *testing.T) {
	t.Parallel()
	const n = 2 << 20
	p := pair(t)
	all := scattered(0, 16, 16, n, 0)
	a, b := p.ini.Buffer(all.End(), seedA), p.tgt.Buffer(all.End(), seedB)
	p.ini.Learn(p.tgt)
	l, r := p.ini.Prep("", a.At(all)), p.ini.Prep("bob", b.At(all))
	var idx []int32
	for i := int32(0); i < n; i += 512 {
		idx = append(idx, i)
	}
	x := p.ini.MakeXfer(worker.XferSpec{Op: nixlapi.Write}, l, idx, r, idx)
	x.Do(limit)
	used := worker.Layout{Len: 16, Stride: 32 * 512, Count: n / 512}
	want(nixlapi.Write, a, b, used, used)
	t.Logf("prepared %d + %d blocks in %v and %v", n, n, l.Prepared, r.Prepared)
}

// TestMillionRequest makes and posts one transfer of 1,048,576 blocks of 8 bytes.
func TestMillionRequest(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("moves a million blocks")
	}
	const n = 1 << 20
	p := pair(t)
	at := scattered(0, 8, 8, n, 0)
	a, b := p.ini.Buffer(at.End(), seedA), p.tgt.Buffer(at.End(), seedB)
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(at), Remote: b.At(at), Peer: "bob"})
	t.Logf("prepared in %v", x.Prepared)
	x.Do(long)
	want(nixlapi.Write, a, b, at, at)
}

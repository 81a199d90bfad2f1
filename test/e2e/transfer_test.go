package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestSizes transfers one block of each size between odd offsets, and checks that no byte around the block changes.
func TestSizes(t *testing.T) {
	t.Parallel()
	eachProgress(t, func(t *testing.T, o option) {
		p := pair(t, o)
		const room = 4096
		for _, size := range []uint64{1, 2, 7, 63, 64, 65, 4095, 4096, 4097, 65535, 65537, 131072,
			1<<20 - 1, 1<<20 + 3, 5<<20 + 77, 16<<20 + 1, 64 << 20} {
			a, b := p.ini.Buffer(size+room, seedA), p.tgt.Buffer(size+room, seedB)
			p.ini.Learn(p.tgt)
			for i, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				la, lb := worker.Span(uint64(13+i*50), size), worker.Span(uint64(1001+i), size)
				a.Fill(seedA)
				b.Fill(seedB)
				msg := fmt.Appendf(nil, "%s %d", op, size)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: msg})
				x.Do(limit)
				require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: msg}}, p.tgt.WaitNotifs(1, limit))
				want(op, a, b, la, lb)
				require.NoError(t, x.Release())
			}
			require.NoError(t, p.ini.Deregister(a.All()))
			require.NoError(t, p.tgt.Deregister(b.All()))
			a.Free()
			b.Free()
			require.NoError(t, p.ini.Invalidate("bob"))
		}
	})
}

// TestRepost posts one transfer 2,000 times with the same notification, and 2,000 times with a numbered one. Each post
// notifies once, in order.
func TestRepost(t *testing.T) {
	t.Parallel()
	const n = 2000
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.buffers(64 << 10)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("same")})
		l := x.Loop(worker.LoopArgs{N: n, Timeout: limit})
		require.Equal(t, n, l.Done, l.Status)
		l = x.Loop(worker.LoopArgs{N: n, Timeout: limit, Prefix: "no. "})
		require.Equal(t, n, l.Done, l.Status)
		got := p.tgt.WaitNotifs(2*n, limit)
		require.Len(t, got, 2*n)
		for i, g := range got {
			if i < n {
				require.Equal(t, "same", string(g.Msg), i)
			} else {
				require.Equal(t, worker.Seq("no. ", i-n), g.Msg)
			}
		}
		// A post without a notification sends none.
		s := x.PostQuiet()
		if s == nixlapi.InProgress {
			s = x.Wait(limit)
		}
		require.Equal(t, nixlapi.Success, s)
		require.NoError(t, p.ini.GenNotif("bob", []byte("end")))
		got = p.tgt.WaitNotifs(1, limit)
		require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: []byte("end")}}, got)
		want(op, a, b, worker.Span(0, a.Size), worker.Span(0, b.Size))
	})
}

// TestBackendOfRequest: the agent names the backend of a transfer, and the backend's estimate is not negative.
func TestBackendOfRequest(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit) // the estimate uses the measured rate
	us, name, err := x.Cost()
	require.NoError(t, err)
	require.Equal(t, p.env.Backend, name)
	require.GreaterOrEqual(t, us, int64(0))
}

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

// TestOver4GiB transfers one block whose length needs more than 32 bits. The buffers have 4 GiB of addresses on 60 MiB of
// pages. The checked windows include the bytes that a truncated length omits or a truncated address hits.
func TestOver4GiB(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("moves 8 GiB")
	}
	const size = 4<<30 + 3<<20 + 77
	ranges := append(hostmem.Windows(size), hostmem.Range{Off: 8 << 20, Len: hostmem.Tile})
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.ini.Alloc(size, hostmem.Tiled), p.tgt.Alloc(size, hostmem.Tiled)
		from := map[nixlapi.Op]uint64{nixlapi.Write: seedA, nixlapi.Read: seedB}[op]
		for _, r := range ranges {
			a.FillRange(r.Off, r.Len, seedA, r.Off)
			b.FillRange(r.Off, r.Len, seedB, r.Off)
			require.GreaterOrEqual(t, b.Diff(r.Off, r.Len, seedA, r.Off), int64(0))
		}
		require.NoError(t, p.ini.Register(a.All()))
		require.NoError(t, p.tgt.Register(b.All()))
		p.ini.Learn(p.tgt)
		p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(long)
		for _, r := range ranges {
			require.EqualValues(t, -1, a.Diff(r.Off, r.Len, from, r.Off), "%#x bytes from %#x on", r.Len, r.Off)
			require.EqualValues(t, -1, b.Diff(r.Off, r.Len, from, r.Off), "%#x bytes from %#x on", r.Len, r.Off)
		}
	})
}

// TestBigReservation registers 64 GiB of reserved address space beside a buffer. The target allocates no pages for it.
func TestBigReservation(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(1 << 20)
	r := p.tgt.Alloc(64<<30, hostmem.Reserve)
	if err := p.tgt.Register(r.All()); err != nil {
		t.Skipf("the backend does not register reserved address space: %v", err)
	}
	require.NoError(t, p.ini.Invalidate("bob"))
	p.ini.Learn(p.tgt)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	require.Less(t, p.tgt.Stats().RSSKiB, int64(2<<20))
}

// TestManyRegions registers 100,000 regions on both sides and writes to every tenth.
func TestManyRegions(t *testing.T) {
	t.Parallel()
	n := rounds(20_000, 100_000)
	p := pair(t)
	at := scattered(0, 256, 64, n, 0)
	a, b := p.ini.Alloc(at.End(), hostmem.Anon), p.tgt.Alloc(at.End(), hostmem.Anon)
	a.Fill(seedA)
	b.Fill(seedB)
	require.NoError(t, p.ini.Register(a.At(at)))
	require.NoError(t, p.tgt.Register(b.At(at)))
	p.ini.Learn(p.tgt)
	sparse := worker.Layout{Len: 256, Stride: 320 * 10, Count: n / 10, Shuffle: 5}
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(sparse), Remote: b.At(sparse), Peer: "bob"}).Do(long)
	want(nixlapi.Write, a, b, sparse, sparse)
	require.NoError(t, p.ini.Deregister(a.At(at)))
	require.NoError(t, p.tgt.Deregister(b.At(at)))
	exit(t, p.ini, p.tgt)
}

// TestPartialMetadata: the initiator loads the connection blob first, then one region at a time.
func TestPartialMetadata(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	c := p.tgt.Buffer(1<<20, seedB)
	conn, err := p.tgt.PartialMetadata()
	require.NoError(t, err)
	_, err = p.ini.Load(conn)
	require.NoError(t, err)
	require.NoError(t, p.ini.GenNotif("bob", []byte("conn")))
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	for _, buf := range []*worker.Buf{b, c} {
		spec := worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: buf.All(), Peer: "bob"}
		_, err := p.ini.TryXfer(spec)
		require.Error(t, err, "a region whose metadata is not loaded was accepted")
		md, err := p.tgt.PartialMetadata(buf.All())
		require.NoError(t, err)
		_, err = p.ini.Load(md)
		require.NoError(t, err)
		p.ini.Xfer(spec).Do(limit)
		buf.Want(seedA)
	}
}

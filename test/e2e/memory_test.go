package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

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
	require.NoError(t, p.ini.Exit())
	require.NoError(t, p.tgt.Exit())
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

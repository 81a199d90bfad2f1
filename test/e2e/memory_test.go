package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/nixl"
	"gorail/test/worker"
)

// needRAM skips when less than n bytes are available.
func needRAM(t *testing.T, n uint64) {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(info), "MemAvailable:")
	kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	if kib<<10 < n {
		t.Skipf("needs %d MiB of memory, %d are available", n>>20, kib>>10)
	}
}

// TestOver4GiB moves one block that no 32-bit length can hold.
func TestOver4GiB(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 9 GiB")
	}
	const size = 4<<30 + 3<<20 + 77
	needRAM(t, 2*size+3<<30)
	for _, kind := range []nixl.Kind{nixl.Shared, nixl.Memfd} {
		t.Run(map[nixl.Kind]string{nixl.Shared: "shared", nixl.Memfd: "memfd"}[kind], func(t *testing.T) {
			p := pair(t)
			a, b := p.ini.Alloc(size, kind), p.tgt.Alloc(size, kind)
			a.Fill(seedA)
			require.NoError(t, p.ini.Register(a.All()))
			require.NoError(t, p.tgt.Register(b.All()))
			p.ini.Learn(p.tgt)
			op := nixl.Write
			if kind == nixl.Memfd {
				op = nixl.Read
				a.FillRange(0, size, 0, 0)
				b.Fill(seedA)
			}
			p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(long)
			a.Want(seedA)
			b.Want(seedA)
		})
	}
}

// TestBigReservation registers 64 GiB of address space that holds no page but
// the one in use.
func TestBigReservation(t *testing.T) {
	p := pair(t)
	a, b := p.buffers(1 << 20)
	r := p.tgt.Alloc(64<<30, nixl.Reserve)
	if err := p.tgt.Register(r.All()); err != nil {
		t.Skipf("the backend does not take a reservation: %v", err)
	}
	require.NoError(t, p.ini.Invalidate("bob"))
	p.ini.Learn(p.tgt)
	p.ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	require.Less(t, p.tgt.Stats().RSSKiB, int64(2<<20))
}

// TestSameRangeTwice registers one range twice and takes one away again.
func TestSameRangeTwice(t *testing.T) {
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	require.NoError(t, p.ini.Register(a.All()))
	require.NoError(t, p.tgt.Register(b.All()))
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	b.Want(seedA)
	require.NoError(t, x.Release())
	require.NoError(t, p.tgt.Deregister(b.All()))
	b.Fill(seedB)
	p.ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
}

// TestOverlapping registers ranges that share bytes and uses each of them.
func TestOverlapping(t *testing.T) {
	p := pair(t)
	const size = 1 << 20
	a, b := p.ini.Buffer(size, seedA), p.tgt.Alloc(size, nixl.Anon)
	ranges := []worker.Side{b.Span(0, size/2+1000), b.Span(size/4, size/2), b.Span(size/2-77, size/2+77), b.Span(0, size)}
	for _, r := range ranges {
		require.NoError(t, p.tgt.Register(r))
	}
	p.ini.Learn(p.tgt)
	for i, r := range ranges {
		b.Fill(seedB)
		lb := r.Layout
		lb.Off, lb.Len = lb.Off+3, lb.Len-5
		la := worker.Span(uint64(i), lb.Len)
		p.ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.At(la), Remote: b.At(lb), Peer: "bob"}).Do(limit)
		b.WantBlocks(seedB, lb, seedA, la)
	}
	for _, r := range ranges {
		require.NoError(t, p.tgt.Deregister(r))
	}
}

// TestManyRegions registers 100,000 regions on both sides and uses them.
func TestManyRegions(t *testing.T) {
	const n = 100_000
	p := pair(t)
	at := scattered(0, 256, 64, n, 0)
	a, b := p.ini.Alloc(at.End(), nixl.Anon), p.tgt.Alloc(at.End(), nixl.Anon)
	a.Fill(seedA)
	b.Fill(seedB)
	require.NoError(t, p.ini.Register(a.At(at)))
	require.NoError(t, p.tgt.Register(b.At(at)))
	p.ini.Learn(p.tgt)
	sparse := worker.Layout{Len: 256, Stride: 320 * 10, Count: n / 10, Shuffle: 5}
	p.ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.At(sparse), Remote: b.At(sparse), Peer: "bob"}).Do(long)
	want(nixl.Write, a, b, sparse, sparse)
	require.NoError(t, p.ini.Deregister(a.At(at)))
	require.NoError(t, p.tgt.Deregister(b.At(at)))
	require.NoError(t, p.ini.Exit())
	require.NoError(t, p.tgt.Exit())
}

// TestPartialMetadata: regions reach the peer piece by piece.
func TestPartialMetadata(t *testing.T) {
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
		spec := worker.XferSpec{Op: nixl.Write, Local: a.All(), Remote: buf.All(), Peer: "bob"}
		_, err := p.ini.TryXfer(spec)
		require.Error(t, err, "the region is not known yet")
		md, err := p.tgt.PartialMetadata(buf.All())
		require.NoError(t, err)
		_, err = p.ini.Load(md)
		require.NoError(t, err)
		p.ini.Xfer(spec).Do(limit)
		buf.Want(seedA)
	}
}

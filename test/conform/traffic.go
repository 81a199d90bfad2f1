package conform

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/drive"
)

func testWriteAndRead(t *testing.T, a, b *side) {
	random(a.mem[:2<<20])
	a.rma(b, drive.Write, 1, a.seg(b, 0, 4096, 1<<20))
	require.True(t, until(a, b, func() bool {
		return a.has(1)() && (a.traits.DeliveryComplete || bytes.Equal(a.mem[:1<<20], b.mem[4096:4096+1<<20]))
	}))
	require.Zero(t, a.done[1].Err)
	require.Equal(t, a.mem[:1<<20], b.mem[4096:4096+1<<20])
	a.rma(b, drive.Read, 2, a.seg(b, 4<<20, 4096, 1<<20))
	require.True(t, until(a, b, a.has(2)))
	require.Zero(t, a.done[2].Err)
	require.Equal(t, a.mem[:1<<20], a.mem[4<<20:5<<20])
}

func testSegments(t *testing.T, a, b *side) {
	n := a.d.IOVLimit()
	random(a.mem[:1<<20])
	var segs []drive.Seg
	for i := range n {
		segs = append(segs, a.seg(b, i*10000, (n-i)*50000, 8000+i))
	}
	a.rma(b, drive.Write, 1, segs...)
	require.True(t, until(a, b, a.has(1)))
	for i := range n {
		require.Equal(t, a.mem[i*10000:i*10000+8000+i], b.mem[(n-i)*50000:(n-i)*50000+8000+i])
		segs[i] = a.seg(b, 2<<20+i*30000, (n-i)*50000, 8000+i)
	}
	a.rma(b, drive.Read, 2, segs...)
	require.True(t, until(a, b, a.has(2)))
	for i := range n {
		require.Equal(t, a.mem[i*10000:i*10000+8000+i], a.mem[2<<20+i*30000:2<<20+i*30000+8000+i])
	}
	require.ErrorIs(t, a.d.RMA(a.ep.Core(), drive.Write, 3), syscall.EINVAL)
	require.ErrorIs(t, a.d.RMA(a.ep.Core(), drive.Write, 3, append(segs, segs...)...), syscall.EINVAL)
}

// One empty WRITE proves all earlier unsignaled WRITEs.
func testUnsignaledWrites(t *testing.T, a, b *side) {
	if !a.d.Chained() {
		t.Skip("the rail does not chain")
	}
	random(a.mem[:2<<20])
	const n, size = 60, 32 << 10
	for i := range uint64(n) {
		a.rma(b, drive.WriteUnsignaled, i, a.seg(b, int(i)*size, int(i)*size, size))
	}
	a.rma(b, drive.Write, n, a.seg(b, 0, n*size, 0))
	require.True(t, until(a, b, a.has(n)))
	require.Equal(t, a.mem[:n*size], b.mem[:n*size])
	require.True(t, until(a, b, func() bool { return len(a.done) == n+1 }))
	for i := range uint64(n + 1) {
		require.Zero(t, a.done[i].Err)
	}
}

func testMessages(t *testing.T, a, b *side) {
	mr, desc, err := a.d.Reg(a.mem)
	require.NoError(t, err)
	defer a.d.Unreg(mr)
	random(a.mem[:64<<10])
	n := min(50, b.d.RxDepth())
	for i := range uint64(n) {
		b.post(a, func() error { return b.d.Recv(b.ep.Core(), 100+i, b.mem[i*1024:i*1024+1024], b.mr.Desc()) })
	}
	for i := range uint64(n) {
		a.post(b, func() error { return a.d.Send(a.ep.Core(), i, a.mem[i*1024:i*1024+100+i], desc) })
	}
	require.True(t, until(a, b, func() bool { return len(a.done) == n && len(b.done) == n }))
	for i := range uint64(n) {
		require.Zero(t, a.done[i].Err)
		require.Equal(t, drive.Comp{ID: 100 + i, Len: 100 + i}, b.done[100+i])
		require.Equal(t, a.mem[i*1024:i*1024+100+i], b.mem[i*1024:i*1024+100+i])
	}
}

// After a WRITE has completed, its bytes are in place. Its source and those of earlier unsignaled WRITEs may be
// overwritten.
func testSourceReused(t *testing.T, a, b *side) {
	if !a.traits.DeliveryComplete {
		t.Skip("completions do not prove placement")
	}
	const rounds, n, size = 200, 8, 16 << 10
	for r := range uint64(rounds) {
		random(a.mem[:n*size])
		want := bytes.Clone(a.mem[:n*size])
		for i := range uint64(n) {
			op := drive.Write
			if a.d.Chained() && i < n-1 {
				op = drive.WriteUnsignaled
			} else if r%2 == 1 {
				op = drive.WriteFlushed
			}
			a.rma(b, op, r*n+i, a.seg(b, int(i)*size, int(i)*size, size))
		}
		require.True(t, until(a, b, func() bool { return len(a.done) == int(r+1)*n }))
		clear(a.mem[:n*size])
		require.True(t, bytes.Equal(want, b.mem[:n*size]), "round %d", r)
		for i := range uint64(n) {
			require.Zero(t, a.done[r*n+i].Err)
		}
	}
}

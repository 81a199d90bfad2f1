package conform

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/test/drive"
)

// reconnect gives both sides new endpoints, as the engine does after a fence.
func reconnect(t *testing.T, a, b *side) {
	for _, s := range []*side{a, b} {
		require.NoError(t, s.ep.Close())
		var err error
		s.ep, err = s.rail.OpenEndpoint()
		require.NoError(t, err)
	}
	connect(t, a, b)
}

// works checks that bytes still move. It uses operation id.
func works(t *testing.T, a, b *side, id uint64) {
	random(a.mem[:64<<10])
	a.rma(b, drive.Write, id, a.seg(b, 0, 128<<10, 64<<10))
	require.True(t, until(a, b, func() bool {
		return a.has(id)() && (a.traits.DeliveryComplete || bytes.Equal(a.mem[:64<<10], b.mem[128<<10:192<<10]))
	}))
	require.Zero(t, a.done[id].Err)
	require.Equal(t, a.mem[:64<<10], b.mem[128<<10:192<<10])
}

// testWrongKey: the error is reported once, nothing lands, and after a reconnect everything works.
func testWrongKey(t *testing.T, a, b *side) {
	if !a.traits.DeliveryComplete {
		t.Skip("completions do not prove placement")
	}
	works(t, a, b, 1)
	copy(b.mem[4096:8192], make([]byte, 4096))
	bad := a.seg(b, 0, 4096, 4096)
	bad.Key ^= 0x55
	a.rma(b, drive.Write, 3, bad)
	require.True(t, until(a, b, a.has(3)))
	require.NotZero(t, a.done[3].Err)
	require.Less(t, int(a.done[3].Err), 256, "an errno")
	out := a.seg(b, 0, len(b.mem)-2048, 4096)
	reconnect(t, a, b)
	a.rma(b, drive.Write, 4, out)
	require.True(t, until(a, b, a.has(4)))
	require.NotZero(t, a.done[4].Err, "out of bounds")
	require.Equal(t, make([]byte, 4096), b.mem[4096:8192])
	reconnect(t, a, b)
	works(t, a, b, 5)
}

func testClosedRegion(t *testing.T, a, b *side) {
	if !a.traits.DeliveryComplete {
		t.Skip("completions do not prove placement")
	}
	works(t, a, b, 1)
	seg := a.seg(b, 0, 0, 4096)
	require.NoError(t, b.mr.Close())
	a.rma(b, drive.Read, 2, seg)
	require.True(t, until(a, b, a.has(2)))
	require.NotZero(t, a.done[2].Err)
}

// testAccess: a WRITE to memory that peers may only READ, and a READ of memory that they may only WRITE, end in error and move
// nothing. What is allowed works, and the memory serves as the local side of both.
func testAccess(t *testing.T, a, b *side) {
	if !a.traits.DeliveryComplete || a.traits.AnyAccess {
		t.Skip("completions do not prove placement, or nobody enforces the access")
	}
	id := uint64(1)
	for i, peers := range []option.Rights{option.PeersRead, option.PeersWrite} {
		good, bad := drive.Read, drive.Write
		if peers == option.PeersWrite {
			good, bad = bad, good
		}
		at := 1 << 20
		m, err := b.rail.Register(drive.Addr(b.mem)+uint64(at), 4096, uint64(300+i), peers)
		require.NoError(t, err)
		seg := drive.Seg{Local: drive.Addr(a.mem), Remote: m.Base(), Len: 4096, Desc: a.mr.Desc(), Key: key(m)}
		random(a.mem[:4096])
		random(b.mem[at+1 : at+4096])
		a.rma(b, good, id, seg)
		require.True(t, until(a, b, a.has(id)))
		require.Zero(t, a.done[id].Err, "%s: what is allowed", peers)
		require.True(t, bytes.Equal(a.mem[:4096], b.mem[at:at+4096]))

		if !(peers == option.PeersWrite && a.traits.WriteReads) {
			clear(a.mem[:4096]) // b has random bytes there
			theirs := bytes.Clone(b.mem[at : at+4096])
			a.rma(b, bad, id+1, seg)
			require.True(t, until(a, b, a.has(id+1)))
			require.NotZero(t, a.done[id+1].Err, "%s: what is not allowed", peers)
			require.True(t, bytes.Equal(make([]byte, 4096), a.mem[:4096]))
			require.True(t, bytes.Equal(theirs, b.mem[at:at+4096]))
			if !a.rail.Caps().SharedEndpoint {
				reconnect(t, a, b)
			}
		}

		// b's own operations over that memory
		for k, op := range []int{drive.Read, drive.Write} {
			local := drive.Seg{Local: drive.Addr(b.mem) + uint64(at), Remote: a.mr.Base(), Len: 4096, Desc: m.Desc(), Key: key(a.mr)}
			b.rma(a, op, id+uint64(k), local)
			require.True(t, until(a, b, b.has(id+uint64(k))))
			require.Zero(t, b.done[id+uint64(k)].Err, "%s: as local memory", peers)
		}
		require.NoError(t, m.Close())
		id += 2
	}
}

// testInitiatorCloses: after the close, each posted operation is reported once.
func testInitiatorCloses(t *testing.T, a, b *side) {
	if a.rail.Caps().SharedEndpoint {
		t.Skip("shared endpoints cancel nothing")
	}
	works(t, a, b, 1)
	const n = 64
	posted := uint64(0)
	for id := uint64(100); id < 100+n; id++ {
		if a.d.RMA(a.ep.Core(), drive.Write, id, a.seg(b, 0, 0, 64<<10)) == nil {
			posted++
		}
	}
	require.Positive(t, posted)
	require.NoError(t, a.d.Recv(a.ep.Core(), 99, a.mem[7<<20:7<<20+64], a.mr.Desc()))
	require.NoError(t, a.ep.Close())
	require.True(t, until(a, b, func() bool { return uint64(len(a.done)) == 1+1+posted }), "%d of %d", len(a.done), posted+2)
	require.Equal(t, syscall.ECANCELED, a.done[99].Err)
}

// testClosesInRead: the endpoint closes while responses to READs arrive. Each READ is reported once, and the rail still
// tells later operations apart.
func testClosesInRead(t *testing.T, a, b *side) {
	if a.rail.Caps().SharedEndpoint {
		t.Skip("shared endpoints cancel nothing")
	}
	random(b.mem)
	id, size := uint64(1), a.atMost(2<<20)
	for polls := range 24 {
		works(t, a, b, id)
		first := id + 1
		for id++; id < first+2; id++ {
			at := int(id-first) << 21
			a.rma(b, drive.Read, id, a.seg(b, at, 4<<20, size))
		}
		for range polls { // the response is at another point in each round
			b.poll()
			a.poll()
		}
		reconnect(t, a, b)
		require.True(t, until(a, b, func() bool { return uint64(len(a.done)) == id-1 }), "%d of %d", len(a.done), id-1)
		random(b.mem[4<<20:])
		last := id + 16
		for ; id < last; id++ {
			n := int(last-id) << 8
			a.rma(b, drive.Read, id, a.seg(b, n<<6, 4<<20+n, n))
		}
		require.True(t, until(a, b, a.has(last-1)))
		for i := last - 16; i < last; i++ {
			n := int(last-i) << 8
			require.True(t, until(a, b, a.has(i)))
			require.Zero(t, a.done[i].Err)
			require.Equal(t, b.mem[4<<20+n:4<<20+2*n], a.mem[n<<6:n<<6+n])
		}
	}
}

// testFence: the target closes its endpoint for one peer in mid-stream. The peer's operations end, each reported once,
// and no more bytes land. Another peer of the same target continues.
func testFence(t *testing.T, a, b *side) {
	if a.rail.Caps().SharedEndpoint {
		t.Skip("closing a shared endpoint is no fence")
	}
	ep2, err := b.rail.OpenEndpoint()
	require.NoError(t, err)
	defer ep2.Close()
	other, err := a.rail.OpenEndpoint()
	require.NoError(t, err)
	defer other.Close()
	join(t, other, ep2)

	works(t, a, b, 1)
	random(a.mem[:4<<20])
	posted := uint64(0)
	for id := uint64(100); id < 120; id++ {
		if a.d.RMA(a.ep.Core(), drive.Write, id, a.seg(b, 0, 2<<20, a.atMost(4<<20))) == nil {
			posted++
		}
	}
	require.Positive(t, posted)
	for range 5 {
		a.poll()
		b.poll()
	}
	require.NoError(t, b.ep.Close())
	copy(b.mem[2<<20:6<<20], make([]byte, 4<<20))
	require.True(t, until(a, b, func() bool { return uint64(len(a.done)) == 1+posted }), "%d of %d", len(a.done), posted+1)
	for range 1000 {
		a.poll()
		b.poll()
	}
	require.Equal(t, make([]byte, 4<<20), b.mem[2<<20:6<<20], "nothing lands behind the fence")

	a.post(b, func() error { return a.d.RMA(other.Core(), drive.Write, 200, a.seg(b, 0, 0, 4096)) })
	require.True(t, until(a, b, a.has(200)))
	require.Zero(t, a.done[200].Err, "the other peer goes on")
	reconnect(t, a, b)
	works(t, a, b, 300)
}

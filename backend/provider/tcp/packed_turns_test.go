package tcp

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

// TestZerosInTurns: packed zeros stand for 7,000 times their bytes. A poll places no more of them than of others, so that other connections
// have their turns, and nothing is forgotten.
func TestZerosInTurns(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprintf("encrypted=%v", encrypted), func(t *testing.T) {
			const frames, mib = 24, 1 << 20
			v := newNodeOf(t, mib, Options{Encryption: encrypted, Compression: sock.AlwaysPack})
			m := v.register(0, mib, option.PeersBoth)
			s := v.meet(t)
			defer s.close()
			block := make([]byte, tcpmodel.PackHead+1)
			block[0] = 1
			var all []byte
			for i := range frames {
				h := tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask | tcpmodel.Packed, Seq: uint64(i + 2)}
				all = append(all, tcpmodel.New(h, bytes.Repeat(block, mib/tcpmodel.PackBlock), tcpmodel.Segment{Key: keyOf(m), Addr: m.Base(), Len: mib}).Encode()...)
			}
			require.Less(t, len(all), tcpmodel.RecordWhole, "one receive takes them all")
			s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Write, Flags: tcpmodel.Ask, Seq: 1}, []byte{1}, tcpmodel.Segment{Key: keyOf(m), Addr: m.Base(), Len: 1}))
			require.Equal(t, uint64(1), s.want(tcpmodel.Ack).Ack)
			if encrypted {
				all = s.out.Seal(all, false)
			}
			require.NoError(t, s.c.SetWriteDeadline(time.Time{}))
			_, err := s.c.Write(all)
			require.NoError(t, err)
			pattern.Fill(v.mem, 1, 0)
			const polls = 2
			for range polls {
				v.poll()
			}
			var acked uint64
			acks := func() {
				s.look()
				for f := s.parse(); f != nil; f = s.parse() {
					acked = f.Ack
				}
			}
			acks() // polls once more
			require.LessOrEqual(t, acked, uint64(1+4*(polls+1)), "a poll has up to three turns of a connection")
			v.until("all frames", func() bool { acks(); return acked == 1+frames })
			pattern.Same(t, make([]byte, mib), v.mem)
		})
	}
}

// TestZerosOutInTurns: the same for what is sent. A poll packs about 1 MiB.
func TestZerosOutInTurns(t *testing.T) {
	const ops, mib = 32, 1 << 20
	a, b := newNodeOf(t, mib, Options{Compression: sock.AlwaysPack}), newNodeOf(t, mib, Options{Compression: sock.AlwaysPack})
	m := b.register(0, mib, option.PeersBoth)
	from, _ := join(t, a, b)
	seg := drive.Seg{Local: drive.Addr(a.mem), Remote: m.Base(), Len: mib, Key: keyOf(m)}
	write := func() drive.Op {
		return drive.Op{Ep: from.Core(), Kind: drive.Write, ID: a.id(), Segs: []drive.Seg{seg}}
	}
	require.NoError(t, a.d.Together(write()))
	a.until("the first WRITE", func() bool { b.poll(); return len(a.done) == 1 })
	var all []drive.Op
	for range ops {
		all = append(all, write())
	}
	before := a.rail.c.Counters().Texts
	require.NoError(t, a.d.Together(all...)) // sends
	require.LessOrEqual(t, a.rail.c.Counters().Texts-before, uint64(2*mib))
	a.until("all WRITEs", func() bool { b.poll(); return len(a.done) == 1+ops })
}

// TestPackedRecordsReceives: a receiver takes records of packed bodies in as large pieces as others.
func TestPackedRecordsReceives(t *testing.T) {
	const mib, rounds = 1 << 20, 8
	o := Options{Encryption: true, Compression: sock.AlwaysPack}
	a, b := newNodeOf(t, mib, o), newNodeOf(t, mib, o)
	m := b.register(0, mib, option.PeersBoth)
	from, _ := join(t, a, b)
	pattern.Fill(a.mem, pattern.Floats|1, 0)
	seg := drive.Seg{Local: drive.Addr(a.mem), Remote: m.Base(), Len: mib, Key: keyOf(m)}
	var before, after uint64
	for i := range rounds + 1 {
		if i == 1 {
			before = b.rail.c.Counters().Receives
		}
		id := a.id()
		require.NoError(t, a.d.RMA(from.Core(), drive.Write, id, seg))
		sent := a.rail.c.Counters().Packed
		for k := 0; k < 1000 && a.rail.c.Counters().Packed == sent; k++ {
			a.poll()
		}
		a.until("a WRITE", func() bool { b.poll(); _, ok := a.done[id]; return ok })
	}
	after = b.rail.c.Counters().Receives
	pattern.Same(t, a.mem, b.mem)
	filled := (after - before) / rounds
	t.Logf("%d receives for 1 MiB", filled)
	require.Less(t, filled, uint64(400))
}

// TestAbsentPacked: memory that is not there when it is to be packed fails its operation, or the peer's, with EFAULT.
func TestAbsentPacked(t *testing.T) {
	const size = 256 << 10
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprintf("encrypted=%v", encrypted), func(t *testing.T) {
			n := newNodeOf(t, size, Options{Encryption: encrypted, Compression: sock.AlwaysPack})
			holed := n.register(0, size+page, option.PeersBoth) // the last page is no one's
			whole := n.register(0, size, option.PeersBoth)
			do := func(kind int, from uint64, to provider.MR, length uint64) syscall.Errno {
				a, b := n.joined()
				defer func() {
					require.NoError(t, a.Close())
					require.NoError(t, b.Close())
				}()
				id := n.id()
				require.NoError(t, n.d.RMA(a.Core(), kind, id, drive.Seg{Local: from, Remote: to.Base(), Len: length, Key: keyOf(to)}))
				n.until("an end", func() bool { _, ok := n.done[id]; return ok })
				return n.done[id].Err
			}
			const before = 150 << 10 // bytes before the page
			require.Equal(t, syscall.EFAULT, do(drive.Write, drive.Addr(n.mem)+size-before, whole, before+page))
			require.NotZero(t, do(drive.Read, drive.Addr(n.mem), holed, size+page), "a part of the answer has been sent")
			require.Equal(t, syscall.EFAULT, do(drive.Read, drive.Addr(n.mem), holed, size+page))
			require.Zero(t, do(drive.Write, drive.Addr(n.mem), whole, size))
			require.Zero(t, do(drive.Read, drive.Addr(n.mem), whole, size))
		})
	}
}

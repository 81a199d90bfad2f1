package tcp

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
)

var recordKiB = flag.Int("record", 0, "KiB of a record inside a body; 0: as it is")

// BenchmarkWrite writes with a message behind, and waits for its acknowledgement. Both ends poll, each in a thread of its own.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		for _, encrypted := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dKiB/encrypted=%v", size>>10, encrypted), func(b *testing.B) { benchWrite(b, size, encrypted) })
		}
	}
}

// benchPair connects two nodes.
func benchPair(b *testing.B, size int, encrypted bool) (n [2]*node, to provider.MR, from, at provider.Endpoint) {
	for i := range n {
		n[i] = newNodeOf(b, size+slot, Options{Encryption: encrypted})
		if *recordKiB > 0 && encrypted {
			n[i].rail.c.Tune(1<<22, 64<<30, uint32(*recordKiB<<10))
		}
	}
	to = n[1].register(0, size, option.PeersBoth)
	from, at = join(b, n[0], n[1])
	return n, to, from, at
}

// benchPost posts the WRITEs and a message behind them. It returns the message's number.
func benchPost(b *testing.B, n *node, from provider.Endpoint, to provider.MR, size int) uint64 {
	const piece = 1 << 20
	id := n.id()
	for off := 0; off < size; off += piece {
		seg := drive.Seg{Local: drive.Addr(n.mem) + uint64(off), Remote: to.Base() + uint64(off), Len: uint64(min(piece, size-off)), Key: keyOf(to)}
		require.NoError(b, n.d.RMA(from.Core(), drive.WriteUnsignaled, 0, seg))
	}
	require.NoError(b, n.d.Send(from.Core(), id, n.mem[size:size+64], nil))
	return id
}

func benchWrite(b *testing.B, size int, encrypted bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, to, from, at := benchPair(b, size, encrypted)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		receive := func() { _ = n[1].d.Recv(at.Core(), 1, n[1].mem[size:size+slot], nil) }
		for range 16 {
			receive()
		}
		for !stop.Load() {
			comps, _ := n[1].d.Poll(64)
			for range comps {
				receive()
			}
		}
	}()
	b.SetBytes(int64(size))
	once := func() {
		id := benchPost(b, n[0], from, to, size)
		for sent := false; !sent; {
			comps, err := n[0].d.Poll(64)
			require.NoError(b, err)
			for _, c := range comps {
				require.Zero(b, c.Err)
				sent = sent || c.ID == id
			}
		}
	}
	once()
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		once()
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(size)/float64(took[len(took)/2].Nanoseconds()), "GB/s-median")
	b.ReportMetric(float64(size)/float64(took[len(took)/10].Nanoseconds()), "GB/s-best-tenth")
	stop.Store(true)
	<-done
}

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
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

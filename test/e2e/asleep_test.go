package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestTargetAsleep: the target exports its metadata and then calls nothing, not even getNotifs. All transfers complete,
// the first one included.
func TestTargetAsleep(t *testing.T) {
	t.Parallel()
	eachProgress(t, func(t *testing.T, o option) {
		eachOp(t, func(t *testing.T, op nixlapi.Op) {
			p := quietPair(t, o)
			la, lb := scattered(0, 8192, 100, 300, 1), scattered(0, 8192, 64, 300, 2)
			a, b := p.ini.Buffer(la.End(), seedA), p.tgt.Buffer(lb.End(), seedB)
			p.ini.Learn(p.tgt)
			x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("n")})
			l := x.Loop(worker.LoopArgs{N: 50, Timeout: limit})
			require.Equal(t, 50, l.Done, "the target calls nothing; status %s", l.Status)
			require.NoError(t, p.ini.GenNotif("bob", []byte("end")))
			p.ini.Polling(true)
			require.Len(t, p.tgt.WaitNotifs(51, limit), 51)
			want(op, a, b, la, lb)
		})
	})
}

// TestInitiatorAsleep: the initiator posts a transfer and does not ask for its status. The data and the notification
// arrive before it asks.
func TestInitiatorAsleep(t *testing.T) {
	t.Parallel()
	for _, size := range []uint64{100, 16 << 20} {
		p := pair(t)
		a, b := p.buffers(size)
		// The first transfer connects. The second one is the test.
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("a")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Fill(seedB)
		require.False(t, x.Post().Failed())
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Want(seedA)
		require.Equal(t, nixlapi.Success, x.Wait(limit))
	}
}

// TestFirstPostAsleep: the initiator does not ask for the status of its first transfer either.
func TestFirstPostAsleep(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("f")})
	require.False(t, x.Post().Failed())
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
}

// TestNotifAfterData: when the target has the notification, it has the data.
func TestNotifAfterData(t *testing.T) {
	t.Parallel()
	const n, size = 200, 300_001
	p := pair(t)
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	for i := range uint64(n) {
		a.Fill(1000 + i)
		require.False(t, x.Post().Failed())
		done := x.WaitAsync(limit) // beside the target's check
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Want(1000 + i)
		require.Equal(t, nixlapi.Success, done.Wait().Status)
	}
}

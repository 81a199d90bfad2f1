package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// quiet is how long a test watches memory after a release. A later change goes unnoticed.
const quiet = 300 * time.Millisecond

// release releases a transfer that may be in flight. The agent may refuse the first time.
func release(t *testing.T, x *worker.Xfer) {
	t.Helper()
	if x.Release() != nil {
		require.NoError(t, x.Release())
	}
}

// untouched requires the pattern of each buffer's seed in the buffer, for the time quiet.
func untouched(t *testing.T, seeds map[*worker.Buf]uint64) {
	t.Helper()
	still(t, quiet, seeds)
}

// TestReleaseInFlight releases transfers at random moments, and fills both buffers anew at once. The released transfers
// change neither buffer any more.
func TestReleaseInFlight(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.buffers(size)
		for i := range uint64(rounds(2, 8)) {
			x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("never")})
			require.False(t, x.Post().Failed())
			s := x.Wait(time.Duration(rng.IntN(4000)) * time.Microsecond)
			release(t, x)
			a.Fill(100 + i)
			b.Fill(200 + i)
			untouched(t, map[*worker.Buf]uint64{a: 100 + i, b: 200 + i})
			// A released transfer has notified at most once.
			got := p.tgt.WaitNotifs(2, 0)
			require.LessOrEqual(t, len(got), 1, "%s", s)
		}
		// The released transfers do not disturb the next one.
		a.Fill(seedA)
		b.Fill(seedB)
		p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
		la := worker.Span(0, size)
		want(op, a, b, la, la)
	})
}

// TestDeregisterInFlight: the target deregisters memory during a transfer. The transfer changes the memory no more after
// that, and transfers to other memory work.
func TestDeregisterInFlight(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	p := pair(t)
	a, b := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
	keep := p.tgt.Buffer(1<<20, seedB)
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("d")})
	loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
	require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
	require.NoError(t, p.tgt.Deregister(b.All()))
	b.Fill(77)
	untouched(t, map[*worker.Buf]uint64{b: 77})
	b.Free() // so that a late access kills the target's process
	l := loop.Wait()
	require.True(t, l.Status.Failed(), "%s after %d transfers", l.Status, l.Done)
	require.Less(t, l.Wall, limit)
	require.True(t, p.ini.Knows("bob"), "the agent forgot the peer for one deregistered region")
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 1<<20), Remote: keep.All(), Peer: "bob"}).Do(limit)
	keep.Want(seedA)
}

// TestCloseInFlight destroys the initiator's or the target's agent during a transfer.
func TestCloseInFlight(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"initiator", "target"} {
		t.Run(who, func(t *testing.T) {
			p := pair(t)
			a, b := p.buffers(64 << 20)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("c")})
			x.Do(limit)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
			require.False(t, x.Post().Failed())
			if who == "initiator" {
				require.NoError(t, p.ini.Close())
			} else {
				require.NoError(t, p.tgt.Close())
				require.NotEqual(t, nixlapi.InProgress, x.Wait(limit))
				release(t, x)
			}
			require.NoError(t, p.ini.Exit())
			require.NoError(t, p.tgt.Exit())
		})
	}
}

package inside

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// told is how soon the death of a peer must be known: by the end of its connection, before it counts as silent (peer_timeout is 20 s in guests).
const told = 15 * time.Second

// TestPeerKilled: the agent at the other machine dies in mid-transfer; the transfer ends with NIXL_ERR_REMOTE_DISCONNECT in time.
func TestPeerKilled(t *testing.T) {
	p := needPair(t, 1)
	for _, c := range ways {
		t.Run(c.op.String(), func(t *testing.T) {
			p := p
			p.t = t
			alice, bob, a, b := p.meet(32 << 20)
			x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.Len(t, bob.WaitNotifs(2, limit), 2)
			before := p.passed(c.from)[0]
			require.True(t, eventually(func() bool { return p.passed(c.from)[0]-before > 1<<20 }))
			bob.Kill()
			began := time.Now()
			l := loop.Wait()
			require.True(t, l.Status.Failed(), "%d transfers, then %s", l.Done, l.Status)
			require.Less(t, time.Since(began), told)
			t.Logf("told after %v", time.Since(began))
			require.Contains(t, alice.Output(), "NIXL_ERR_REMOTE_DISCONNECT")
			require.NotEqual(t, nixlapi.Success, x.Post())
			if x.Release() != nil {
				require.NoError(t, x.Release())
			}
			require.NoError(t, alice.Exit())
		})
	}
}

package inside

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// disconnectLimit is the time within which a peer's death must be detected. It is shorter than peer_timeout (20 s in guests): the end of
// the connection reports the death.
const disconnectLimit = 15 * time.Second

// TestPeerKilled: the agent at host B is killed during a transfer. The transfer fails with NIXL_ERR_REMOTE_DISCONNECT within
// disconnectLimit.
func TestPeerKilled(t *testing.T) {
	p := needPair(t, 1)
	for _, c := range ways {
		t.Run(c.op.String(), func(t *testing.T) {
			p := p
			p.t = t
			alice, bob, a, b := p.connect(32 << 20)
			x := alice.Xfer(worker.XferSpec{Op: c.op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.Len(t, bob.WaitNotifs(2, limit), 2)
			before := p.passed(c.from)[0]
			require.True(t, eventually(func() bool { return p.passed(c.from)[0]-before > 1<<20 }))
			bob.Kill()
			began := time.Now()
			l := loop.Wait()
			require.True(t, l.Status.Failed(), "%d transfers, then %s", l.Done, l.Status)
			require.Less(t, time.Since(began), disconnectLimit)
			t.Logf("transfer failed %v after the kill", time.Since(began))
			require.Contains(t, alice.Output(), "NIXL_ERR_REMOTE_DISCONNECT")
			require.NotEqual(t, nixlapi.Success, x.Post())
			if x.Release() != nil {
				require.NoError(t, x.Release())
			}
			require.NoError(t, alice.Exit())
		})
	}
}

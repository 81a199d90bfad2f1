package inside

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestSourceReused: after a transfer succeeds, the application may overwrite the source. After the notification arrives, the target has
// all data. The test overwrites the source at once and compares the target, in 200 rounds.
func TestSourceReused(t *testing.T) {
	p := needPair(t, 1)
	const rounds, size = 200, 1 << 20 // large enough that two rails both take part
	alice, bob, a, b := p.connect(size)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	for i := range uint64(rounds) {
		a.Fill(i)
		note := fmt.Appendf(nil, "n%d", i)
		st := x.PostNotif(note)
		require.False(t, st.Failed(), "round %d: %s\n%s\n%s", i, st, alice.Output(), bob.Output())
		require.Equal(t, nixlapi.Success, x.Wait(limit), "round %d\n%s\n%s", i, alice.Output(), bob.Output())
		a.Fill(^i)
		require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: note}}, bob.WaitNotifs(1, limit))
		b.Want(i)
	}
	require.NoError(t, alice.Exit())
	require.NoError(t, bob.Exit())
}

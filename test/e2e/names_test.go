package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestRestartInitiator: an initiator is killed, or stopped, and another process starts under its name. The target serves
// it at once. A stopped process that continues finds its session as it was.
func TestRestartInitiator(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			t.Parallel()
			tgt := start(t, "bob")
			tgt.Polling(true)
			b := tgt.Buffer(1<<20, seedB)
			begin := func(seed uint64) (*worker.Agent, *worker.Xfer) {
				ini := start(t, "alice")
				a := ini.Buffer(1<<20, seed)
				ini.Learn(tgt)
				x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: fmt.Append(nil, seed)})
				x.Do(limit)
				b.Want(seed)
				return ini, x
			}
			old, x := begin(1)
			if silent {
				old.Stop()
			} else {
				old.Kill()
			}
			_, y := begin(2)
			want := []string{"1", "2"}
			if silent {
				old.Cont()
				x.Do(limit)
				b.Want(uint64(1))
				y.Do(limit)
				b.Want(uint64(2))
				want = append(want, "1", "2")
			}
			var got []string
			for _, n := range tgt.WaitNotifs(len(want), limit) {
				require.Equal(t, "alice", n.From)
				got = append(got, string(n.Msg))
			}
			require.ElementsMatch(t, want, got) // the order is that of each engine
		})
	}
}

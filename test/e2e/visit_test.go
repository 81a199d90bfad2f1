package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// visits is the least number of notifications of each pattern. GORAIL_VISITS sets it.
func visits() int {
	if n, err := strconv.Atoi(os.Getenv("GORAIL_VISITS")); err == nil {
		return n
	}
	return rounds(100, 400)
}

// TestRemoveDelivers: remove_remote_agent follows right after accepted notifications. All of them arrive in order, however
// often the target polls.
func TestRemoveDelivers(t *testing.T) {
	t.Parallel()
	n := visits()
	for _, pattern := range []struct {
		name string
		args worker.VisitArgs
	}{
		{"write", worker.VisitArgs{N: n, Transfer: true, Op: nixlapi.Write}},
		{"read", worker.VisitArgs{N: n, Transfer: true, Op: nixlapi.Read}},
		{"alone", worker.VisitArgs{N: n, Alone: 1}},
		{"200_alone", worker.VisitArgs{N: (n + 199) / 200, Alone: 200}},
		{"write_and_199", worker.VisitArgs{N: (n + 199) / 200, Transfer: true, Op: nixlapi.Write, Alone: 199}},
	} {
		t.Run(pattern.name, func(t *testing.T) {
			p := quietPair(t)
			a, b := p.buffers(64 << 10)
			require.NoError(t, p.ini.Invalidate("bob"))
			in := pattern.args
			in.Prefix, in.Blob, in.Local, in.Remote, in.Timeout = "v", p.tgt.Metadata(), a.All(), b.All(), 5*long
			each := in.Alone
			if in.Transfer {
				each++
			}
			visit := func(t *testing.T) {
				accepted, err := p.ini.Visit(in)
				require.NoError(t, err, "%s", p.ini.Output())
				require.Equal(t, in.N*each, accepted)
			}
			check := func(t *testing.T) {
				got := p.tgt.WaitNotifs(in.N*each, limit)
				require.Len(t, got, in.N*each, "%s\n%s", p.ini.Output(), p.tgt.Output())
				for i, g := range got {
					require.Equal(t, string(worker.Seq("v", i)), string(g.Msg))
				}
			}
			t.Run("target_polls_densely", func(t *testing.T) { p.tgt.Polling(true); visit(t); check(t) })
			t.Run("target_polls_every_5ms", func(t *testing.T) { p.tgt.PollEvery(5 * time.Millisecond); visit(t); check(t) })
			t.Run("target_polls_a_second_later", func(t *testing.T) {
				p.tgt.Polling(false)
				visit(t)
				time.Sleep(time.Second)
				check(t)
			})
		})
	}
}

// TestCloseDelivers: the sender's agent is destroyed, or its process exits normally, right after accepted notifications.
// All of them arrive in order. An engine that ends waits half a second for that at most. A starved machine may need longer to connect:
// then the log says that notifications may be lost, those that arrive are in order, and another visit takes the place of this one.
func TestCloseDelivers(t *testing.T) {
	t.Parallel()
	p := quietPair(t)
	const n, wanted, most = 200, 5, 30
	for visit, complete := 0, 0; complete < wanted; visit++ {
		require.Less(t, visit, most, "the engine waited long enough in %d visits", complete)
		w := process(t, worker.Options{Env: p.env})
		s := agent(w, p.env, "carol")
		s.Learn(p.tgt)
		prefix := string(worker.Seq("c", visit)) + "."
		require.Nil(t, s.GenNotifsAsync("bob", prefix, n).Wait().Err)
		if complete%2 == 0 {
			require.NoError(t, s.Close())
		} else {
			require.NoError(t, w.Exit())
		}
		arrived := 0
		gaveUp := func() bool {
			return strings.Contains(w.Output(), "engine closed before the peer confirmed the last notifications")
		}
		require.True(t, worker.Eventually(limit, func() bool {
			for _, g := range p.tgt.WaitNotifs(n-arrived, 100*time.Millisecond) {
				if strings.HasPrefix(string(g.Msg), prefix) { // or late, of a visit before
					require.Equal(t, string(worker.Seq(prefix, arrived)), string(g.Msg))
					arrived++
				}
			}
			return arrived == n || gaveUp()
		}), "%d of %d arrived\n%s", arrived, n, w.Output())
		if arrived == n {
			complete++
		} else {
			t.Logf("visit %d: %d of %d had arrived when the engine gave up", visit, arrived, n)
		}
	}
}

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestFreshAgents: 16 threads make the first use of an agent at once, for many agents in each of two sync modes. They send
// notifications and post transfers, to the agent itself or to another. Every call succeeds, and each notification
// arrives once.
func TestFreshAgents(t *testing.T) {
	t.Parallel()
	const threads, each = 16, 10
	agents := rounds(16, 50)
	env := testenv.Need(t)
	for mode, sync := range map[string]nixlapi.Sync{"strict": nixlapi.SyncStrict, "rw": nixlapi.SyncRW} {
		t.Run(mode, func(t *testing.T) {
			shared := func(c *worker.AgentConfig) { c.Sync, c.Concurrent = sync, true }
			bob := start(t, "bob")
			there := bob.Buffer(threads*4096, seedB)
			w := process(t, worker.Options{Env: env})
			for i := range agents {
				a := agent(w, env, fmt.Sprint("alice", i), shared)
				here := a.Buffer(threads*4096, seedA)
				to, remote := bob, there
				if i%2 == 0 {
					to, remote = a, a.Buffer(threads*4096, seedB)
				} else {
					a.Learn(bob)
				}
				var notes []*worker.Future[worker.ErrOut]
				var loops []*worker.Future[worker.LoopResult]
				var xfers []*worker.Xfer
				for k := range uint64(threads) {
					if i%4 >= 2 && k%4 == 0 {
						xfers = append(xfers, a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: here.Span(k*4096, 4096), Remote: remote.Span(k*4096, 4096),
							Peer: to.Name}))
					}
				}
				want := map[string]int{}
				expect := func(prefix string) string {
					for n := range each {
						want[string(worker.Seq(prefix, n))]++
					}
					return prefix
				}
				for k := range threads {
					if i%4 >= 2 && k%4 == 0 {
						loops = append(loops, xfers[k/4].LoopAsync(worker.LoopArgs{N: each, Timeout: limit, Prefix: expect(fmt.Sprint("x", k, "."))}))
						continue
					}
					notes = append(notes, a.GenNotifsAsync(to.Name, expect(fmt.Sprint("n", k, ".")), each))
				}
				for _, f := range notes {
					require.Nil(t, f.Wait().Err)
				}
				for _, f := range loops {
					l := f.Wait()
					require.Equal(t, each, l.Done, "%v", l.Status)
				}
				for _, n := range to.WaitNotifs(threads*each, limit) {
					require.Equal(t, a.Name, n.From)
					want[string(n.Msg)]--
				}
				for text, left := range want {
					require.Zero(t, left, "agent %d: %s", i, text)
				}
				require.NoError(t, a.Close())
			}
			require.Empty(t, bob.WaitNotifs(1, 0), "a notification came twice")
		})
	}
}

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// orders are the orders in which an ordinary life ends.
var orders = map[string]func(t *testing.T, p *pairOf){
	"initiator_first": func(t *testing.T, p *pairOf) { endBoth(t, p.ini, p.tgt) },
	"target_first":    func(t *testing.T, p *pairOf) { endBoth(t, p.tgt, p.ini) },
	"removed_first": func(t *testing.T, p *pairOf) {
		require.NoError(t, p.ini.Invalidate("bob"))
		require.NoError(t, p.tgt.Invalidate("alice"))
		endBoth(t, p.tgt, p.ini)
	},
	"together": func(t *testing.T, p *pairOf) {
		done := make(chan error)
		go func() { done <- p.ini.Close() }()
		err := p.tgt.Close()
		require.NoError(t, <-done)
		require.NoError(t, err)
	},
	"processes_exit": func(t *testing.T, p *pairOf) {
		require.NoError(t, p.tgt.Exit())
		require.NoError(t, p.ini.Exit())
	},
}

// ordersInShort are the lives of the short form.
var ordersInShort = map[string]bool{"tcp/initiator_first": true, "tcp/together": true, "tcp_threads/target_first": true, "memory/removed_first": true, "defaults/processes_exit": true}

func endBoth(t *testing.T, all ...*worker.Agent) {
	for _, a := range all {
		require.NoError(t, a.Close())
	}
}

// TestOrdinaryLifeIsQuiet: two agents that register, transfer both ways, notify, deregister, remove each other and end, in each order, leave
// no line of ours at log=warn.
func TestOrdinaryLifeIsQuiet(t *testing.T) {
	t.Parallel()
	ours(t)
	for way, set := range map[string][]string{
		"tcp":         {"provider", "tcp"},
		"tcp_threads": {"provider", "tcp", "tcp_threads", "4"},
		"memory":      {"provider", "sm"},
		"defaults":    nil,
	} {
		for order, end := range orders {
			if testing.Short() && !ordersInShort[way+"/"+order] {
				continue // each way and each order has one life
			}
			t.Run(fmt.Sprintf("%s/%s", way, order), func(t *testing.T) {
				t.Parallel()
				said := slices.DeleteFunc(strings.Split(lifeOf(t, params(set...), order, end), "\n"), func(line string) bool {
					return strings.Contains(line, "waited=500ms") // on a starved host, where both end at once: the line is true (TestCloseDelivers)
				})
				require.NotContains(t, strings.Join(said, "\n"), "backend=GORAIL")
			})
		}
	}
}

// lifeOf is the life of two agents in two processes. It returns what both have written to standard error.
func lifeOf(t *testing.T, set option, order string, end func(t *testing.T, p *pairOf)) (said string) {
	env := testenv.Need(t)
	begin := func(name string) *worker.Agent {
		return agent(process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=warn"}}), env, name, set)
	}
	p := &pairOf{env: env, ini: begin("alice"), tgt: begin("bob")}
	for range 2 { // the second life of the same agents is with new memory
		live(t, p)
	}
	live(t, &pairOf{env: env, ini: p.tgt, tgt: p.ini})
	end(t, p)
	for _, a := range []*worker.Agent{p.ini, p.tgt} {
		if order != "processes_exit" {
			require.NoError(t, a.Exit())
		}
		said += a.Output()
	}
	return said
}

// live is what agents do with each other, up to the deregistration of both buffers.
func live(t *testing.T, p *pairOf) {
	a, b := p.buffers(1 << 20)
	for i, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: p.tgt.Name, Notif: worker.Seq("n", i)})
		for range 3 {
			x.Do(limit)
		}
		require.NoError(t, x.Release())
	}
	require.NoError(t, p.ini.GenNotif(p.tgt.Name, []byte("alone")))
	require.Len(t, p.tgt.WaitNotifs(7, limit), 7)
	require.NoError(t, p.tgt.Deregister(b.All()))
	require.NoError(t, p.ini.Deregister(a.All()))
}

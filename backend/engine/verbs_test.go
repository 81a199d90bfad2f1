package engine

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	imitation "gorail/test/verbs"
)

// asked returns the counters of the imitated library since Zero.
func asked(lib *imitation.Lib) map[string]int {
	n := map[string]int{}
	for _, name := range []string{"writes", "empty_writes", "reads", "sends", "signaled", "inlined", "chains", "longest", "cqes"} {
		if c := lib.Count(name); c > 0 {
			n[name] = c
		}
	}
	return n
}

// every is n descriptors of size bytes, none of which merge.
func (p *pair) every(n, size int) (local, remote []Desc) {
	for i := range n {
		local = append(local, p.mine.desc(2*i*size, size))
		remote = append(remote, p.theirs.desc(2*i*size, size))
	}
	return local, remote
}

// A large transfer uses two rails, and its notification takes one of them. A READ after each WRITE proves that the WRITE is in
// place. A small transfer uses one rail. Its notification follows on the same rail, so no READ is needed.
func TestVerbsCountsTwoRails(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 2)
	p := h.pair(64<<20, "window_min", "4MiB", "window_max", "4MiB", "chunk_max", "1MiB")
	proved := func() bool {
		return h.lib.Count("reads") > 0 && h.lib.Count("writes")-h.lib.Count("empty_writes") == h.lib.Count("reads")
	}
	for n := 0; n == 0 || n < 1000 && !proved(); n++ { // until both rails work from the first WRITE on
		h.lib.Zero()
		p.a.whole(transfer.Write, p.mine, p.theirs).run("all")
		p.b.expect("ann:all")
	}
	n := asked(h.lib)
	require.Positive(t, n["reads"])
	require.Equal(t, n["writes"]-n["empty_writes"], n["reads"], "%v: each WRITE of 1 MiB has a READ as its proof", n)
	require.GreaterOrEqual(t, n["longest"], 2, "a WRITE and its proof are posted together")
	require.LessOrEqual(t, n["longest"], 32)
	h.lib.Zero()
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	require.Zero(t, h.lib.Count("reads"), "without a notification nothing overtakes the data")
	local, remote := p.every(1, 64<<10)
	x := p.a.prep(transfer.Write, local, remote, "bob")
	want, got := map[string]int{"writes": 1, "sends": 1, "inlined": 1, "chains": 1, "longest": 2, "signaled": 1, "cqes": 2}, map[string]int(nil)
	for n := 0; n < 20 && !maps.Equal(want, got); n++ { // the counters may include a message with credits, or a probe
		h.lib.Zero()
		x.run("small")
		p.b.expect("ann:small")
		got = asked(h.lib)
	}
	x.release()
	require.Equal(t, want, got)
}

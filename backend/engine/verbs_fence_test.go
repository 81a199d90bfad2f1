package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
)

// A request breaks its connection, and the kernel finds no neighbour for another one (ibv_modify_qp to RTR does not return). The transfer
// goes on over the other rail meanwhile, and the peers' control channel works: keys of other memory arrive. READ and WRITE. The rail is
// used again when the kernel has the neighbour.
func TestVerbsFenceWaitsForNoNeighbour(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]int{"WRITE": transfer.Write, "READ": transfer.Read} {
		t.Run(name, func(t *testing.T) {
			h := onVerbs(t, 2)
			p := h.pair(16 << 20)
			p.a.whole(op, p.mine, p.theirs).run("first")
			p.b.expect("ann:first")
			used := func() int { return h.log.count(`"rail in use" peer=bob`) }
			until(t, "both rails are in use", func() bool { return used() >= 2 })
			before := used()
			h.lib.Set("hold_rtr", 3)
			release := func() { h.lib.Set("hold_rtr", 0) }
			t.Cleanup(release)
			h.lib.Set("break_wr", 5)
			p.mine.b[7]++
			p.theirs.b[9]++
			p.a.whole(op, p.mine, p.theirs).run("second")
			p.b.expect("ann:second")
			p.same()
			until(t, "another endpoint is being connected", func() bool { return h.lib.Count("held") > 0 })
			mine, theirs := p.a.memory(1<<20), p.b.memory(1<<20).seenBy(p.a)
			p.a.whole(op, mine, theirs).run("third")
			p.b.expect("ann:third")
			require.Positive(t, h.lib.Count("held"))
			require.Equal(t, before, used())
			release()
			until(t, "the rail is in use again", func() bool { return used() > before })
		})
	}
}

// ibv_destroy_qp does not return at either end of a broken connection. The transfer goes on over the other rail all the same.
func TestVerbsFenceWaitsForNoDestroy(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 2)
	p := h.pair(16 << 20)
	p.a.whole(transfer.Read, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	until(t, "both rails are in use", func() bool { return h.log.count(`"rail in use" peer=bob`) >= 2 })
	h.lib.Set("hold_destroy", 1)
	t.Cleanup(func() { h.lib.Set("hold_destroy", 0) })
	h.lib.Set("break_wr", 5)
	p.theirs.b[7]++
	x := p.a.whole(transfer.Read, p.mine, p.theirs)
	x.run("second")
	p.b.expect("ann:second")
	p.same()
	require.Positive(t, h.lib.Count("held"))
}

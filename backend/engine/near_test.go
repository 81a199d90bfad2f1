package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
)

// onNodes is a harness with one rail per listed NUMA node. -1: the node is unknown.
func onNodes(t *testing.T, nodes ...int) *harness {
	h := onRails(t, len(nodes), fake.TCPCaps())
	for i, n := range nodes {
		h.links[i].Node = n + 1
	}
	return h
}

// nearPair is a pair. Its initiator takes all memory to be on one node.
func nearPair(h *harness, node int) *pair {
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	p.a.rails.Nodes = func(uint64, uint64) (int, error) { return node, nil }
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(16<<20), p.b.memory(16<<20).seenBy(p.a)
	p.allUp(len(h.links))
	return p
}

// small moves 4 KiB and returns the number of the link.
func (p *pair) small(op int) int {
	x := p.a.prep(op, []Desc{p.mine.desc(0, 4096)}, []Desc{p.theirs.desc(0, 4096)}, "bob")
	x.run("")
	defer x.release()
	for i, n := range x.shares() {
		if n > 0 {
			return i
		}
	}
	return -1
}

// used runs that many small transfers and counts them by rail.
func (p *pair) used(rounds int) map[string]int {
	used := map[string]int{}
	r := p.a.connected("bob")
	for i := range rounds {
		k := p.small(i % 2)
		used[r.links()[k].Rail.Device().Name]++
	}
	return used
}

// Small transfers use the rail near the memory, even if other rails come first. They use other rails while the near rail is
// down. Large transfers use all rails.
func TestNearRail(t *testing.T) {
	t.Parallel()
	h := onNodes(t, 1, 1, 0, -1)
	p := nearPair(h, 0)
	require.Equal(t, map[string]int{"fake2": 16}, p.used(16))
	p.a.railNo(2).Down(syscall.ENETDOWN)
	p.small(transfer.Write)
	until(t, "the failed rail is found", func() bool { return p.a.connected("bob").atWork() == 3 })
	far := p.used(32)
	require.NotContains(t, far, "fake2")
	p.a.railNo(2).Up()
	p.allUp(4)
	require.Equal(t, map[string]int{"fake2": 16}, p.used(16))
	for op := range 2 {
		x := p.a.whole(op, p.mine.fill(1), p.theirs.fill(2))
		x.run("")
		p.same()
		for i, n := range x.shares() {
			require.Positive(t, n, "rail %d", i)
		}
	}
}

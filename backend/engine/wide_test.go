package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// afar discovers fake devices as ones that leave the host.
type afar struct{ provider.Provider }

func (p afar) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	found, err := p.Provider.Discover(ctx, f)
	for i := range found {
		found[i].Loopback, found[i].Hardware = false, true
	}
	return found, err
}

// onWide is a harness with that many rails on each of two NUMA nodes, of which memory has at most most.
func onWide(t testing.TB, each, most int, caps fake.Caps) *harness {
	h := onRails(t, 2*each, caps)
	for i := range h.links {
		h.links[i].Node = 1 + i/each
	}
	h.wrap = func(p provider.Provider) provider.Provider { return afar{p} }
	h.params = append(h.params, "max_rails", fmt.Sprint(most), "rail_share", "off")
	return h
}

// on makes an agent take all memory that it registers from now on to be on one NUMA node.
func (a *agent) on(node int) *agent {
	a.rails.Nodes = func(uint64, uint64) (int, error) { return node, nil }
	return a
}

// opened are the rails whose device is open.
func (a *agent) opened() (list []int) {
	for _, r := range a.rails.List {
		if !r.Idle() {
			list = append(list, r.Index)
		}
	}
	return list
}

// pairs are the pairs of rails over which a transfer of both buffers moved bytes.
func (p *pair) pairs(op int) (list []rails.Pair) {
	x := p.a.whole(op, p.mine.fill(1), p.theirs.fill(2))
	x.run("done")
	defer x.release()
	p.same()
	r := p.a.connected("bob")
	for i, n := range x.shares() {
		if l := r.links()[i]; n > 0 {
			list = append(list, rails.Pair{Own: l.Rail.Index, Peer: l.Peer})
		}
	}
	return list
}

// Memory of a wide machine is registered on rails near to it alone. Transfers go over pairs of rails near to both sides. Devices that no
// memory needs stay closed, but for the two that a session begins with.
func TestWide(t *testing.T) {
	t.Parallel()
	for name, caps := range map[string]fake.Caps{"ordered": fake.SecuredCaps(), "shared endpoints": sharedCaps(), "unordered": fake.EFACaps()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := onWide(t, 6, 3, caps)
			p := &pair{a: h.agent("ann"), b: h.agent("bob")}
			require.Len(t, p.a.rails.List, 12)
			require.Equal(t, []int{0}, p.a.opened())
			loadBoth(p.a, p.b)
			for _, nodes := range [][2]int{{0, 0}, {1, 1}, {0, 1}, {1, 0}} {
				p.mine, p.theirs = p.a.on(nodes[0]).memory(16<<20), p.b.on(nodes[1]).memory(16<<20).seenBy(p.a)
				for op := range 2 {
					p.pairs(op) // links may come up while bytes move
				}
				var used []rails.Pair
				until(t, "all near pairs carry bytes", func() bool { used = p.pairs(transfer.Write); return len(used) >= 3 })
				for _, pair := range used {
					require.Equal(t, nodes, [2]int{p.a.rails.List[pair.Own].Device().NUMA, p.b.rails.List[pair.Peer].Device().NUMA}, "%v", used)
				}
				own := map[int]bool{}
				for _, pair := range used {
					own[pair.Own] = true
				}
				require.Len(t, own, 3, "each near rail carries a share: %v", used)
			}
			require.LessOrEqual(t, len(p.a.opened()), 2*3+2)
			require.LessOrEqual(t, len(p.b.opened()), 2*3+2)
		})
	}
}

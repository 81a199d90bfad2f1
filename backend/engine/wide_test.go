package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/transfer"
	"gorail/test/fake"
	imitation "gorail/test/verbs"
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

// onWide is a harness with two NUMA nodes, and each rails on each of them. A region is on most rails at most.
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

// Memory of a wide machine is registered on rails near to it, and on the two that all host memory is on. Transfers go over pairs of rails near to both sides. Devices that no
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
				until(t, "all rails near to our memory carry bytes", func() bool {
					near := map[int]bool{}
					for _, pair := range p.pairs(transfer.Write) {
						at := [2]int{p.a.rails.List[pair.Own].Device().NUMA, p.b.rails.List[pair.Peer].Device().NUMA}
						require.True(t, at == nodes || p.a.rails.Common(pair.Own) || p.b.rails.Common(pair.Peer), "%v", pair)
						if at[0] == nodes[0] {
							near[pair.Own] = true
						}
					}
					return len(near) == 3
				})
			}
			require.LessOrEqual(t, len(p.a.opened()), 2*3+2)
			require.LessOrEqual(t, len(p.b.opened()), 2*3+2)
		})
	}
}

// Host memory moves on: to devices that another engine of the host has left, and to any if its own are down. Transfers that were prepared before
// use them, in both directions, and peers learn the keys.
func TestWiden(t *testing.T) {
	t.Parallel()
	h := onWide(t, 4, 2, fake.SecuredCaps())
	h.params = append(h.params, "rail_share", "on", "local_dir", t.TempDir())
	for i := range h.links {
		h.links[i].Node = 1 // that of the process, if it has one
	}
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	third, err := h.open("carl")
	require.NoError(t, err)
	defer third.Close() // if the test fails before
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.on(-1).memory(16<<20), p.b.on(-1).memory(16<<20).seenBy(p.a)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	defer x.release()
	home := func(a *agent) uint64 { return a.rails.For(rails.Place{Node: -1}) }
	ours, theirs, its := home(p.a), home(p.b), home(third)
	require.Zero(t, ours&theirs|ours&its|theirs&its)
	rounds := func(what string, done func(ours, theirs uint64) bool) {
		until(t, what, func() bool {
			p.mine.fill(3)
			x.run("")
			p.same()
			ours, theirs := uint64(0), uint64(0)
			for i, n := range x.shares() {
				if l := p.a.connected("bob").links()[i]; n > 0 {
					ours, theirs = ours|1<<l.Rail.Index, theirs|1<<l.Peer
				}
			}
			return done(ours, theirs)
		})
	}
	rounds("the rails of each", func(here, there uint64) bool { return here == ours && there == theirs })
	until(t, "both see the third engine", func() bool { return p.a.rails.Others()&p.b.rails.Others()&its == its })
	require.NoError(t, third.Close())
	rounds("rails that it has left", func(here, there uint64) bool { return here&its != 0 && there&its != 0 })
	for i := range 7 {
		p.a.railChanged(fmt.Sprint("fake", i), false)
	}
	rounds("another rail after all of ours are down", func(here, _ uint64) bool { return here&(1<<7) != 0 })
	for i := range 7 {
		p.b.railChanged(fmt.Sprint("fake", i), false)
	}
	rounds("another rail after all of the peer's are down", func(_, there uint64) bool { return there&(1<<7) != 0 })
}

// Memory of a GPU is registered on the devices nearest to that GPU on the PCI bus, and on no others, and transfers between two GPUs use those of
// both.
func TestWideGPU(t *testing.T) {
	t.Parallel()
	h := onGPUDevices(t, 4)
	h.sys["class/infiniband/hca0/ports/1/gids/0"] = &fstest.MapFile{Data: []byte("0000:0000:0000:0000:0000:ffff:7f00:0901\n")} // no address of lo, as the others
	for n := range 4 {
		at := fmt.Sprintf("pci0000:%d0/0000:%d0:01.0/0000:%d1:00.0/0000:%d2:0%d.0/", 1+n/2, 1+n/2, 1+n/2, 1+n/2, n%2)
		imitation.OnPCI(h.sys, n, at+fmt.Sprintf("0000:%d%d:00.0", 1+n/2, 3+n%2))
	}
	for gpu := range 2 {
		imitation.OnPCI(h.sys, -1, fmt.Sprintf("pci0000:%d0/0000:%d0:01.0/0000:%d1:00.0/0000:%d2:03.0/0000:a%d:00.0", 1+gpu, 1+gpu, 1+gpu, 1+gpu, gpu))
	}
	h.sysfs, h.params = h.sys, append(h.params, "max_rails", "2")
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	for _, gpus := range [][2]int{{0, 0}, {1, 1}, {0, 1}, {1, 0}} {
		mine, theirs := h.gpu(a, gpus[0], 4<<20, 0), h.gpu(b, gpus[1], 4<<20, 0)
		seen := theirs.seenBy(a)
		mine.fill()
		x := a.prep(transfer.Write, []Desc{mine.desc(0, 4<<20)}, []Desc{seen.desc(0, 4<<20)}, "bob")
		until(t, "both near rails carry bytes", func() bool {
			x.run("")
			used := map[int]bool{}
			for i, n := range x.shares() {
				if l := a.connected("bob").links()[i]; n > 0 {
					require.Equal(t, gpus, [2]int{l.Rail.Index / 2, l.Peer / 2})
					used[l.Rail.Index] = true
				}
			}
			return len(used) == 2
		})
		require.Equal(t, mine.bytes(), theirs.bytes())
		x.release()
	}
	for _, m := range a.regions.All() {
		require.EqualValues(t, 3<<(2*m.Dev), m.Rails.Load(), "GPU %d", m.Dev)
	}
}

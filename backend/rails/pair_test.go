package rails_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/provider"
	"gorail/backend/rails"
)

// side makes rails from "fabric/subnet", "fabric/subnet/mbps" or "fabric/subnet/mbps/shard". The fabric lo is loopback.
func side(text string) (all []provider.Device) {
	for i, f := range strings.Fields(text) {
		p := strings.Split(f, "/")
		d := provider.Device{Fabric: p[0], Subnet: p[1], Name: fmt.Sprint("eth", i), Loopback: p[0] == "lo"}
		if len(p) > 2 {
			_, _ = fmt.Sscan(p[2], &d.Mbps)
		}
		if len(p) > 3 {
			_, _ = fmt.Sscan(p[3], &d.Shard)
		}
		all = append(all, d)
	}
	return all
}

func TestMatch(t *testing.T) {
	for name, c := range map[string]struct {
		own, peer string
		same      bool
		want      []rails.Pair
	}{
		"nothing":              {},
		"one":                  {own: "net/a", peer: "net/a", want: []rails.Pair{{0, 0}}},
		"no common fabric":     {own: "net/a", peer: "efa/a"},
		"by number":            {own: "efa/e efa/e", peer: "efa/e efa/e", want: []rails.Pair{{0, 0}, {1, 1}}},
		"by subnet":            {own: "net/a net/b", peer: "net/b net/a", want: []rails.Pair{{0, 1}, {1, 0}}},
		"n-th of the subnet":   {own: "net/a net/b net/a", peer: "net/b net/a net/a", want: []rails.Pair{{0, 1}, {1, 0}, {2, 2}}},
		"one to three":         {own: "net/a", peer: "net/a net/a net/a", want: []rails.Pair{{0, 0}, {0, 1}, {0, 2}}},
		"three to one":         {own: "net/a net/a net/a", peer: "net/a", want: []rails.Pair{{0, 0}, {1, 0}, {2, 0}}},
		"five to two":          {own: "net/a net/a net/a net/a net/a", peer: "net/a net/a", want: []rails.Pair{{0, 0}, {1, 1}, {2, 0}, {3, 1}, {4, 0}}},
		"loopback alone":       {own: "lo/l net/a", peer: "lo/l net/a", same: true, want: []rails.Pair{{0, 0}}},
		"loopback elsewhere":   {own: "lo/l net/a", peer: "lo/l net/a", want: []rails.Pair{{1, 1}}},
		"loopback on one side": {own: "net/a", peer: "lo/l net/a", same: true, want: []rails.Pair{{0, 1}}},
		"loopback only":        {own: "lo/l", peer: "lo/l"},
		"several loopbacks":    {own: "lo/ lo/ lo/", peer: "lo/ lo/ lo/", same: true, want: []rails.Pair{{0, 0}, {1, 1}, {2, 2}}},
		"routed":               {own: "net/a net/b", peer: "net/c net/d", want: []rails.Pair{{0, 0}, {1, 1}}},
		"routed, one to two":   {own: "net/a", peer: "net/c net/d", want: []rails.Pair{{0, 0}, {0, 1}}},
		"routed come last":     {own: "net/x/400 net/a/10", peer: "net/y/400 net/a/10", want: []rails.Pair{{1, 1}, {0, 0}}},
		"no way to the second": {own: "net/a", peer: "net/a net/b", want: []rails.Pair{{0, 0}}},
		"the faster first":     {own: "net/a/10 net/b/400 net/c", peer: "net/a/400 net/b/100 net/c", want: []rails.Pair{{1, 1}, {0, 0}, {2, 2}}},
		"shards":               {own: "net/a net/b net/a/0/1 net/b/0/1", peer: "net/b net/a net/b/0/1 net/a/0/1", want: []rails.Pair{{0, 1}, {1, 0}, {2, 3}, {3, 2}}},
		"fewer shards there":   {own: "net/a net/a/0/1 net/a/0/2", peer: "net/a net/a/0/1", want: []rails.Pair{{0, 0}, {1, 1}}},
		"a shard left over":    {own: "net/a net/b net/a/0/1", peer: "net/a net/b net/b/0/1", want: []rails.Pair{{0, 0}, {1, 1}}},
		"routed shards":        {own: "net/a net/a/0/1", peer: "net/b net/b/0/1", want: []rails.Pair{{0, 0}, {1, 1}}},
		"first shards first":   {own: "net/a/10 net/b/10 net/a/400/1 net/b/400/1", peer: "net/a/10 net/c/10 net/a/400/1 net/c/400/1", want: []rails.Pair{{0, 0}, {1, 1}, {2, 2}, {3, 3}}},
		"two fabrics":          {own: "efa/e net/a", peer: "net/a efa/e", want: []rails.Pair{{0, 1}, {1, 0}}},
	} {
		offers := rails.Offers(side(c.peer))
		require.Equal(t, c.want, rails.Match(side(c.own), offers, c.same, nil), name)
		slices.Reverse(offers)
		require.Equal(t, c.want, rails.Match(side(c.own), offers, c.same, nil), "%s: the index counts, not the place", name)
		if len(offers) > 0 {
			again := offers[0]
			again.Subnet = "other"
			require.Equal(t, c.want, rails.Match(side(c.own), append(offers, again), c.same, nil), "%s: an index twice", name)
		}
	}
}

func TestMatchAnything(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) []provider.Device {
		words := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("%s/%s/%d/%d", rapid.SampledFrom([]string{"net", "net", "efa", "lo"}).Draw(t, "fabric"),
				rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "subnet"), rapid.IntRange(0, 3).Draw(t, "mbps"), rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "shard"))
		}), 0, 9).Draw(t, "rails")
		return side(strings.Join(words, " "))
	})
	type end struct {
		peer bool
		rail int
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, same := gen.Draw(t, "a"), gen.Draw(t, "b"), rapid.Bool().Draw(t, "same")
		pairs, mirror := rails.Match(a, rails.Offers(b), same, nil), rails.Match(b, rails.Offers(a), same, nil)
		for i := range mirror {
			mirror[i] = rails.Pair{Own: mirror[i].Peer, Peer: mirror[i].Own}
		}
		require.ElementsMatch(t, pairs, mirror)
		shuffled := rails.Offers(b)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(shuffled), func(i, j int) {
			shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		})
		require.Equal(t, pairs, rails.Match(a, shuffled, same, nil))

		fits := func(x, y provider.Device, subnet bool) bool {
			return x.Fabric == y.Fabric && x.Loopback == y.Loopback && x.Shard == y.Shard && (!subnet || x.Subnet == y.Subnet)
		}
		partner := func(x provider.Device, others []provider.Device) bool { // of the same subnet
			return slices.ContainsFunc(others, func(y provider.Device) bool { return fits(x, y, true) })
		}
		near := func(x provider.Device, others []provider.Device) bool { // or of the first shard
			first := x
			first.Shard = 0
			return partner(x, others) || partner(first, others)
		}
		used, times := map[end]int{}, map[rails.Pair]int{}
		loops := 0
		for _, p := range pairs {
			x, y := a[p.Own], b[p.Peer]
			times[p]++
			used[end{false, p.Own}]++
			used[end{true, p.Peer}]++
			require.True(t, fits(x, y, false))
			require.False(t, x.Subnet != y.Subnet && (near(x, b) || near(y, a)), "across subnets without need")
			if x.Loopback {
				loops++
			}
		}
		require.True(t, loops == 0 || same && loops == len(pairs), "loopback is not mixed with others")
		for p, n := range times {
			require.Equal(t, 1, n, "%v", p)
		}
		check := func(rails, others []provider.Device, peer bool) {
			for i, x := range rails {
				lonely := func(y provider.Device) bool { return fits(x, y, false) && !near(y, rails) }
				can := partner(x, others) || !near(x, others) && slices.ContainsFunc(others, lonely)
				if x.Loopback != (loops > 0) {
					can = false
				}
				require.Equal(t, can, used[end{peer, i}] > 0, "rail %d of %v", i, rails)
			}
		}
		check(a, b, false)
		check(b, a, true)
	})
}

// On the machines of the fixtures, half of the chosen devices are near each node's memory. No device is near an unknown
// node.
func TestNearOnMachines(t *testing.T) {
	for name, c := range map[string]struct {
		fabric, suffix string
		near           [][]string // by node
	}{
		"dgx-h100": {"verbs;ofi_rxm", "", [][]string{{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5"}, {"mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}}},
		"p5-48xlarge": {"efa", "-rdm", [][]string{{"rdmap79s0-rdm", "rdmap96s0-rdm", "rdmap113s0-rdm", "rdmap130s0-rdm"},
			{"rdmap147s0-rdm", "rdmap164s0-rdm", "rdmap181s0-rdm", "rdmap198s0-rdm"}}},
	} {
		m := machine(t, name)
		chosen, _ := rails.Choose(hardware(c.fabric, c.suffix, rdmaNames(m)...), rails.FactsOf(m), rails.ChooseOptions{MaxRails: 8})
		require.True(t, rails.SeveralNodes(chosen), name)
		for node, want := range c.near {
			var near []string
			for _, d := range chosen {
				if rails.Near(d, node) {
					near = append(near, d.Name)
				}
				require.False(t, rails.Near(d, -1))
				require.False(t, rails.Near(d, len(c.near)))
			}
			require.Equal(t, want, near, "%s node %d", name, node)
		}
	}
}

func TestSeveralNodes(t *testing.T) {
	for _, c := range []struct {
		nodes []int
		want  bool
	}{{nil, false}, {[]int{-1, -1}, false}, {[]int{0, 0}, false}, {[]int{-1, 0, 0, -1}, false}, {[]int{1, -1, 0}, true}} {
		var all []provider.Device
		for _, n := range c.nodes {
			all = append(all, provider.Device{NUMA: n})
		}
		require.Equal(t, c.want, rails.SeveralNodes(all), c.nodes)
	}
	require.False(t, rails.Near(provider.Device{NUMA: -1}, -1), "unknown is not near unknown")
}

func TestShards(t *testing.T) {
	two := []provider.Device{{Fabric: "tcp", Name: "eth0", Shards: 3}, {Fabric: "tcp", Name: "eth1", Shards: 2}, {Fabric: "sm", Name: "memory"}}
	for most, want := range map[int]string{
		64: "tcp/eth0 tcp/eth1 sm/memory tcp/eth0[1] tcp/eth1[1] tcp/eth0[2]",
		4:  "tcp/eth0 tcp/eth1 sm/memory tcp/eth0[1]",
		2:  "tcp/eth0 tcp/eth1 sm/memory", // the choice of devices is made
	} {
		var got []string
		for _, d := range rails.Shards(two, most) {
			got = append(got, rails.Name(d))
		}
		require.Equal(t, want, strings.Join(got, " "), most)
	}
}

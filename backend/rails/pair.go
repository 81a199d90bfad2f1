package rails

// Rules that choose the rails of an engine, and pair them with a peer's rails. They are pure.

import (
	"cmp"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/wire"
)

// Pair is one rail of ours and the peer's rail that it communicates with, by index on each side.
type Pair struct{ Own, Peer int }

// Offers describes our rails for the connection blob. The index of an offer is its index in the slice.
func Offers(devices []provider.Device) []wire.RailOffer {
	offers := make([]wire.RailOffer, len(devices))
	for i, d := range devices {
		offers[i] = wire.RailOffer{Index: uint8(i), Fabric: d.Fabric, Subnet: d.Subnet, Name: d.Name, Loopback: d.Loopback, Mbps: d.Mbps, Shard: uint8(d.Shard)}
	}
	return offers
}

// network is what paired rails have in common.
type network struct {
	fabric, subnet string
	shard          uint8
}

// Match pairs our rails with a peer's rails, best first. The peer computes the mirror image. Each pair occurs once. Each
// rail that reaches a rail of the other side is in a pair.
//
// Shared-memory pairs (Device.Host) are the only ones, if there are any: their offers are left out of peer if the rails do
// not reach each other. sameNS: both agents are in one network namespace. If so, loopback pairs are the only ones, if there
// are any. In all other cases loopback rails are left out. The n-th rail of a
// fabric and subnet pairs with the peer's n-th rail of the same fabric and subnet. If one side has more rails there, the
// other side's rails serve several in turn. Rails without a partner in their subnet may be routed: such rails of one
// fabric pair by number as well, and come last. Shards pair with shards of their number; those that the peer lacks stay alone.
//
// known is what was learned of pairs before: those that are apart are avoided (pairUp).
func Match(own []provider.Device, peer []wire.RailOffer, sameNS bool, known Known) []Pair {
	theirs := slices.Clone(peer)
	slices.SortStableFunc(theirs, func(a, b wire.RailOffer) int { return cmp.Compare(a.Index, b.Index) })
	theirs = slices.CompactFunc(theirs, func(a, b wire.RailOffer) bool { return a.Index == b.Index })
	m := matcher{ours: Offers(own), theirs: theirs, own: own, known: known}
	host := func(o wire.RailOffer) bool { return own[o.Index].Host }
	m.join(slices.DeleteFunc(slices.Clone(m.ours), func(o wire.RailOffer) bool { return !host(o) }), theirs, subnet, false)
	if len(m.pairs) > 0 {
		return m.sorted()
	}
	m.ours = slices.DeleteFunc(m.ours, host)
	if sameNS {
		if m.match(true); len(m.pairs) > 0 {
			return m.sorted()
		}
	}
	m.match(false)
	return m.sorted()
}

// Towards returns our rails that are on a network with a rail of the peer, if no rail of ours is: networks that reach each other by no router need them.
// known is what was learned of pairs: within a network, too, rails may be apart.
func Towards(own []provider.Device, peer []wire.RailOffer, ours, theirs uint64, known Known) (mask uint64) {
	all := Offers(own)
	if known != nil {
		if on := beyond(slices.DeleteFunc(slices.Clone(all), func(o wire.RailOffer) bool { return own[o.Index].Host }), peer, ours, theirs, known); on != 0 {
			return on
		}
	}
	for _, o := range peer {
		if o.Index > 63 || theirs&(1<<o.Index) == 0 || o.Loopback || len(o.Proof) > 0 {
			continue
		}
		for _, a := range all {
			switch {
			case subnet(a) != subnet(o) || a.Loopback || own[a.Index].Host:
			case ours&(1<<a.Index) != 0:
				return 0
			default:
				mask |= 1 << a.Index
			}
		}
	}
	return mask
}

// Between pairs the rails of two bit masks as Match does, for memory that is registered on those alone. It leaves out rails that do not leave
// the host. If one side has more rails, those of the other serve several.
func Between(own []provider.Device, peer []wire.RailOffer, ours, theirs uint64, known Known) []Pair {
	m := matcher{ours: Offers(own), theirs: slices.Clone(peer), own: own, known: known}
	m.ours = slices.DeleteFunc(m.ours, func(o wire.RailOffer) bool { return own[o.Index].Host || ours&(1<<o.Index) == 0 })
	m.theirs = slices.DeleteFunc(m.theirs, func(o wire.RailOffer) bool { return theirs&(1<<(o.Index&63)) == 0 || o.Index > 63 || len(o.Proof) > 0 })
	slices.SortStableFunc(m.theirs, func(a, b wire.RailOffer) int { return cmp.Compare(a.Index, b.Index) })
	m.match(false)
	return m.sorted()
}

func subnet(o wire.RailOffer) network { return network{o.Fabric, o.Subnet, o.Shard} }
func fabric(o wire.RailOffer) network { return network{o.Fabric, "", o.Shard} }

type matcher struct {
	ours, theirs []wire.RailOffer
	own          []provider.Device
	known        Known
	pairs        []scored
}

type scored struct {
	Pair
	shard  uint8
	routed bool
	works  bool   // known to
	mbps   uint64 // of the slower end
}

// match makes the pairs of all loopback rails, or of all others.
func (m *matcher) match(loopback bool) {
	pick := func(offers []wire.RailOffer) []wire.RailOffer {
		return slices.DeleteFunc(slices.Clone(offers), func(o wire.RailOffer) bool { return o.Loopback != loopback })
	}
	ours, theirs := pick(m.ours), pick(m.theirs)
	ours, theirs = m.join(ours, theirs, subnet, false)
	m.join(slices.DeleteFunc(ours, func(o wire.RailOffer) bool { return m.own[o.Index].Confined }), theirs, fabric, true)
}

// join pairs rails within each network. It returns the rails without a partner. A further shard of a device that has one is not
// among them: its network is not routed.
func (m *matcher) join(ours, theirs []wire.RailOffer, of func(wire.RailOffer) network, routed bool) (alone, theirsAlone []wire.RailOffer) {
	group := func(offers []wire.RailOffer) map[network][]wire.RailOffer {
		g := map[network][]wire.RailOffer{}
		for _, o := range offers {
			g[of(o)] = append(g[of(o)], o)
		}
		return g
	}
	a, b := group(ours), group(theirs)
	for net, left := range a {
		right := b[net]
		if len(right) == 0 {
			continue
		}
		for _, p := range pairUp(left, right, m.known) {
			l, r := left[p[0]], right[p[1]]
			m.pairs = append(m.pairs, scored{Pair{int(l.Index), int(r.Index)}, l.Shard, routed, m.known != nil && m.known(int(l.Index), int(r.Index)) == Works, min(l.Mbps, r.Mbps)})
		}
	}
	without := func(offers []wire.RailOffer, other map[network][]wire.RailOffer) []wire.RailOffer {
		return slices.DeleteFunc(offers, func(o wire.RailOffer) bool {
			first := of(o)
			first.shard = 0
			return len(other[of(o)]) > 0 || len(other[first]) > 0
		})
	}
	return without(ours, b), without(theirs, a)
}

// sorted puts the first shards first, pairs of one subnet before routed ones, then pairs that are known to work, then the faster pairs, then by number.
func (m *matcher) sorted() []Pair {
	slices.SortFunc(m.pairs, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), less(b.routed, a.routed), less(a.works, b.works), cmp.Compare(b.mbps, a.mbps), cmp.Compare(a.Own, b.Own), cmp.Compare(a.Peer, b.Peer))
	})
	var pairs []Pair
	for _, s := range m.pairs {
		pairs = append(pairs, s.Pair)
	}
	return pairs
}
